"""`python -m benchmarks ledger`: what entering, verifying and a chain cost.

Embedded: eight writers enter one act each at a time and go on when it is durable, as a coordinator's requests do; then
the whole file is verified, signatures, links, rules and all, per second and per second of processor time.

Chain: a real anvil that mines each transaction at once; a step of 256 submissions is entered under its Merkle root,
judged by three validators and settled, and the gas of all its transactions added up.

What a run spends on its ledger comes from a run: `share_of_run`.
"""

import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.common.configs import base_model, changed, laptop_config
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure
from benchmarks.common.roles import Roles
from shoal.crypto.keys import Key
from shoal.errors import BenchError
from shoal.ledger.acts import Act, Commit, Deposit, Fund, Leaf, Reveal, Settle, Terms, Work, beacons, vote_hash
from shoal.ledger.evm.ledger import EvmLedger
from shoal.ledger.evm.rpc import Chain
from shoal.ledger.export import verify_file
from shoal.ledger.store import SqliteLedger
from shoal.rundir import prepare_run
from tests.support.servers.anvil import Anvil, anvil

RUN = "bench"
MAX_SHARE = 0.02
WRITERS = 8
VALIDATORS = 3
NODES = 16
STEP = 256
BARS = {"entries_per_s": 300.0, "verify_per_s": 2000.0}


@dataclass(frozen=True, slots=True)
class Size:
    """Entries of the embedded ledger; rounds, of which the best counts; steps on the chain."""

    entries: int
    rounds: int
    steps: int


FULL = Size(entries=3000, rounds=3, steps=5)
QUICK = Size(entries=100, rounds=1, steps=1)


def bench_ledger(quick: bool, progress: Progress) -> BenchResult:
    size = QUICK if quick else FULL
    values: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-ledger-") as scratch:
        values.update(_embedded(Path(scratch), size, progress))
        with progress.aside():
            stack = anvil()
        with stack as chain:
            values.update(_on_chain(chain, Path(scratch), size, progress))
        ratios = {"share_of_run": _share(Path(scratch) / "run", 3 if quick else 30, progress)}
    bars: dict[str, tuple[Literal[">=", "<="], float]] = {name: (">=", bar) for name, bar in BARS.items()}
    bars["share_of_run"] = ("<=", MAX_SHARE)
    return BenchResult("ledger", ratios, values, bars)


def _share(path: Path, steps: int, progress: Progress) -> float:
    """What the ledger takes of a short training through the swarm."""
    progress.stage("the ledger of a run")
    config = changed(laptop_config(), {"steps": steps, "model.source": str(base_model(laptop_config(), progress))})
    run = prepare_run(config, path, progress.console)
    with Roles(run) as roles:
        roles.steps(steps, progress.detail)
    return share_of_run(run.path)


def make_terms(coordinator: Key, validators: list[Key], links: list[str]) -> Terms:
    addresses = tuple(key.address for key in validators)
    quorum = len(validators) // 2 + 1
    return Terms(
        arbiter=coordinator.address, validators=addresses, drawn=len(validators), quorum=quorum, beacon=links[0]
    )


def _embedded(scratch: Path, size: Size, progress: Progress) -> dict[str, Figure]:
    coordinator = Key.create()
    terms = make_terms(coordinator, [coordinator], ["00" * 32])
    entered, verified, busily = [], [], []
    for number in range(size.rounds):
        progress.stage(f"embedded, round {number + 1} of {size.rounds}")
        path = scratch / str(number) / "ledger.db"
        ledger = SqliteLedger.open(path, coordinator, RUN, terms)
        acts: list[Act] = [Deposit(id=str(n), node=Key.create().address, amount=1) for n in range(size.entries)]
        with ThreadPoolExecutor(WRITERS) as pool:
            began = time.perf_counter()
            for _ in pool.map(lambda act, ledger=ledger: ledger.enter(coordinator, act), acts):
                pass
            entered.append(size.entries / (time.perf_counter() - began))
        ledger.close()
        progress.detail("verifying")
        began, busy = time.perf_counter(), time.process_time()
        history = verify_file(path)
        verified.append((history.number + 1) / (time.perf_counter() - began))
        busily.append((history.number + 1) / (time.process_time() - busy))
        if len(history.state.accounts) != size.entries + 1:
            raise BenchError(f"ledger: {len(history.state.accounts) - 1} of {size.entries} nodes have an account")
    return {
        "entries": size.entries,
        "entries_per_s": max(entered),
        "verify_per_s": max(verified),
        "verify_per_cpu_s": max(busily),
    }


def _on_chain(chain: Anvil, scratch: Path, size: Size, progress: Progress) -> dict[str, Figure]:
    coordinator, validators = Key.create(), [Key.create() for _ in range(VALIDATORS)]
    links = [link.hex() for link in beacons(b"\1" * 32, size.steps + 1)]
    for key in (coordinator, *validators):
        chain.enrich(key.address)
    progress.stage("chain: the contract and its nodes")
    rpc = Chain(chain.url, scratch / "sent.json")
    ledger = EvmLedger.deploy(rpc, coordinator, RUN, make_terms(coordinator, validators, links))
    nodes = [Key.create().address for _ in range(NODES)]
    ledger.enter(coordinator, Fund(id="budget", amount=10**12))
    times: dict[str, list[float]] = {}
    gas: list[dict[str, int]] = []
    for step in range(size.steps):
        progress.stage(f"chain: step {step + 1} of {size.steps}, {STEP} submissions")
        leaves = tuple(
            Leaf(submission=i, node=nodes[i % NODES], sha256=f"{step * STEP + i:064x}", tokens=1000)
            for i in range(STEP)
        )
        used: dict[str, int] = {}
        for key, act in _acts(step, leaves, links[step + 1], coordinator, validators):
            began = time.perf_counter()
            ledger.enter(key, act)
            times.setdefault(act.kind, []).append(1e3 * (time.perf_counter() - began))
            assert ledger.last is not None
            used[act.kind] = used.get(act.kind, 0) + ledger.last.gas
        gas.append(used)
        if ledger.outcomes(step) != "a" * STEP:
            raise BenchError(f"ledger: step {step} on the chain was not accepted")
    typical = gas[-1]
    return {
        "evm_submit_p50_ms": statistics.median(times["work"]),
        "evm_settle_p50_ms": statistics.median(times["settle"]),
        "evm_gas_per_step": sum(typical.values()),
        **{f"evm_gas_{kind}": typical[kind] for kind in ("work", "commit", "reveal", "settle")},
        "submissions_per_step": STEP,
        "validators": VALIDATORS,
    }


def _acts(
    step: int, leaves: tuple[Leaf, ...], beacon: str, coordinator: Key, validators: list[Key]
) -> list[tuple[Key, Act]]:
    reveal = Reveal(batch=step, votes="a" * STEP, salt="5a" * 32)
    commits = [(key, Commit(batch=step, hash=vote_hash(RUN, key.address, reveal))) for key in validators]
    reveals = [(key, reveal) for key in validators]
    work = Work(batch=step, step=step, leaves=leaves, beacon=beacon)
    return [(coordinator, work), *commits, *reveals, (coordinator, Settle(batch=step))]


def share_of_run(run: Path) -> float:
    """The part of a run's wall time that went into its ledger.

    From `RUN/ledger.json`, which the coordinator writes at its end: seconds spent entering, and seconds since
    the start.
    """
    path = run / "ledger.json"
    try:
        tree = json.loads(path.read_bytes())
        return float(tree["spent_s"]) / float(tree["wall_s"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise BenchError(f"{path}: does not say how long the run and its ledger took ({error})") from error
