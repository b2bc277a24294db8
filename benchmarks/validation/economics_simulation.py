"""Monte-Carlo simulation of cheaters: the validator's own draws and the ledger's own rules, in memory.

Files are made of numbers: a hash, the lengths of the answers, and which of them are fakes. A fake that is recomputed is
found out. What a key has in the end is what the ledger says.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.config import RunConfig
from shoal.coordinator.ledger_writer import ledger_terms
from shoal.coordinator.policy import Terms
from shoal.crypto.keys import Key
from shoal.ledger import rules
from shoal.ledger.acts import NO_HASH, Act, Fund, Leaf, Open, Reveal, Settle, Work, beacons
from shoal.ledger.state import State, holdings
from shoal.validate.audit import Audits
from shoal.validate.economics import MARGIN, answers_per_file

COORDINATOR, VALIDATOR = Key(b"\1" * 32), Key(b"\2" * 32)
# Tokens of an honest answer.
LENGTH = 16
MAX_STEPS = 4000


@dataclass(frozen=True, slots=True)
class File:
    """A file as audits see it."""

    sha256: str
    lengths: Sequence[int]
    fakes: frozenset[int]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


def make_file(rng: random.Random, answers: int, fakes: int = 0, length: float = 1.0) -> File:
    """A file with fakes of so many times an honest answer's length, spread evenly: so they pass most often."""
    chosen = frozenset(n * answers // fakes for n in range(fakes))
    lengths = [max(1, round(length * LENGTH)) if n in chosen else LENGTH for n in range(answers)]
    return File(f"{rng.getrandbits(256):064x}", lengths, chosen)


def is_found_out(audits: Audits, node: str, file: File, step: int) -> bool:
    """Whether the validator's draws hit a fake."""
    if audits.drawn(node, file.sha256, step):
        return bool(file.fakes)
    return not file.fakes.isdisjoint(audits.spot(file.sha256, file.lengths))


@dataclass(slots=True)
class Books:
    """The ledger of a run, whose only validator reveals at once; each step has one batch."""

    config: RunConfig
    links: list[str] = field(init=False)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.links = [link.hex() for link in beacons(b"\3" * 32, MAX_STEPS)]
        roles = Terms.of(self.config, COORDINATOR.address, frozenset([VALIDATOR.address]))
        terms = ledger_terms(self.config, COORDINATOR, roles, bytes.fromhex(self.links[0]))
        self.state = rules.opened(self.config.name, COORDINATOR.address, Open(terms=terms))
        self._enter(COORDINATOR, Fund(id="treasury", amount=1 << 60))

    def _enter(self, who: Key, act: Act) -> None:
        rules.apply(self.state, who.address, act)

    @property
    def step(self) -> int:
        return len(self.state.links)

    def settle(self, files: Sequence[tuple[str, File, bool]] = ()) -> None:
        """Enters a step's files, each with its node and whether it is accepted."""
        step, batch = self.step, len(self.state.batches)
        leaves = tuple(
            Leaf(submission=n, node=node, sha256=file.sha256, tokens=file.tokens)
            for n, (node, file, _) in enumerate(files)
        )
        self._enter(COORDINATOR, Work(batch=batch, step=step, leaves=leaves, beacon=self.links[step + 1]))
        if leaves:
            votes = "".join("a" if accept else "r" for _, _, accept in files)
            self._enter(VALIDATOR, Reveal(batch=batch, votes=votes, evidence=(NO_HASH,) * votes.count("r")))
            self._enter(COORDINATOR, Settle(batch=batch))

    def pause(self) -> None:
        """Lets so many steps pass that nothing is locked any more."""
        for _ in range(2 * self.config.ledger.window):
            self.settle()

    def credits_of(self, node: str) -> int:
        account = self.state.accounts.get(node)
        if account is None:
            return 0
        has = holdings(self.state, account)
        return has.stake + has.leaving + has.locked + has.earned


def simulated_gains(
    config: RunConfig, fakes: int, every: int, length: float, keys: int, seed: int = 0, margin: float = MARGIN
) -> list[float]:
    """What each of some keys gains over honest work, in honest files' pay, by cheating in a file of every so many steps
    until it is found out, after an honest probation and a pause."""
    rng, answers = random.Random(seed), answers_per_file(config)
    audits, books = Audits(config.audit, rng.randbytes(32)), Books(config)
    nodes = [f"0x{n:040x}" for n in range(1, keys + 1)]
    for _ in range(config.audit.probation):
        files = [(node, make_file(rng, answers)) for node in nodes]
        # No two keys share a step here: alarms are the business of `simulated_strike`.
        books.settle([(node, file, not is_found_out(audits, node, file, -1)) for node, file in files])
    books.pause()
    before = {node: books.credits_of(node) for node in nodes}
    cheated = dict.fromkeys(nodes, 0)
    at_large = list(nodes)
    while at_large and books.step < MAX_STEPS - 1000:
        made = [(node, make_file(rng, answers, fakes, length)) for node in at_large]
        judged = [(node, file, not is_found_out(audits, node, file, -1)) for node, file in made]
        books.settle(judged)
        for _ in range(every - 1):
            books.settle()
        for node, _, _ in judged:
            cheated[node] += 1
        at_large = [node for node, _, accept in judged if accept]
    books.pause()
    given_up = (1 - margin) * (1 - fakes / answers) + margin
    honest = answers * LENGTH * config.ledger.rate
    return [(books.credits_of(node) - before[node]) / honest - given_up * cheated[node] for node in nodes]


def simulated_strike(config: RunConfig, fakes: int, length: float, keys: int, seed: int) -> int:
    """Fakes that pass if so many keys, all past their probation, hand in one such file each for one step."""
    rng, answers = random.Random(seed), answers_per_file(config)
    audits, step, passed = Audits(config.audit, rng.randbytes(32)), 7, 0
    nodes = [str(n) for n in range(keys)]
    for node in nodes:
        for earlier in range(config.audit.probation):
            audits.drawn(node, f"{rng.getrandbits(256):064x}", -1 - earlier)
    for node in nodes:
        file = make_file(rng, answers, fakes, length)
        if is_found_out(audits, node, file, step):
            audits.alarm(node, step)
        else:
            passed += len(file.fakes)
    return passed


def recomputed_share(config: RunConfig, files: int, seed: int = 0) -> float:
    """Tokens that are recomputed, as a share of those handed in by honest nodes past their probation.

    Lengths are exponential, of which few long answers hold many of the tokens: what is drawn by tokens is long.
    """
    rng, answers = random.Random(seed), answers_per_file(config)
    audits = Audits(config.audit.model_copy(update={"probation": 0}), rng.randbytes(32))
    again = in_all = 0
    for _ in range(files):
        sha256 = f"{rng.getrandbits(256):064x}"
        lengths = [1 + int(rng.expovariate(1 / LENGTH)) for _ in range(answers)]
        whole = audits.drawn("honest", sha256, 0)
        again += sum(lengths) if whole else sum(lengths[n] for n in audits.spot(sha256, lengths))
        in_all += sum(lengths)
    return again / in_all
