"""The rules, all of them: `apply` enters an act into the state, or refuses it by name and changes nothing.

Every refusal comes before the first change. Nothing here knows of files, clocks, signatures or networks: whoever calls
has made sure that the author signed. The contract on a chain does what stands here; the same tests hold for both.

- Stake, or accepted work, decides how many leases a node may hold.
- Credits come from the treasury for each accepted token and are locked for the challenge window.
- A reject with evidence takes stake and locked earnings, to the treasury and never to an accuser, suspends, then bans.
  A void costs the work and nothing else: that is for files that are late, torn or of another version.
- Validators are drawn, commit, then reveal. They lose standing for an accusation or an acceptance that a replay
  refutes, for misjudging a planted sample and, less, for not revealing; work regains it, point by point.
"""

from shoal.ledger.acts import (
    NO_HASH,
    Act,
    Challenge,
    Commit,
    Deposit,
    Fund,
    Head,
    Leaf,
    Open,
    Register,
    Reveal,
    Rule,
    Settle,
    Unbond,
    Withdraw,
    Work,
    plants_hash,
    vote_hash,
)
from shoal.ledger.draw import draw
from shoal.ledger.merkle import keccak_words
from shoal.ledger.refusal import Refused
from shoal.ledger.state import FULL_STANDING, Account, Batch, Judge, State, Taken, holdings, in_standing, status

# Three mistakes that a replay shows and a validator is out; ten files judged in silence cost as much as one of them.
REFUTED = MISJUDGED = 34
MISSED = 10
REGAINED = 1


def opened(run: str, author: str, act: Open) -> State:
    """The state that a ledger begins with."""
    terms = act.terms
    if not terms.quorum <= terms.drawn < 2 * terms.quorum:
        raise Refused("mismatch", f"open: quorum {terms.quorum} must be more than half of {terms.drawn} drawn, or all")
    if len(set(terms.validators)) != len(terms.validators):
        raise Refused("mismatch", "open: a validator is named twice")
    state = State(run, author, terms, terms.beacon)
    for address in terms.validators:
        state.accounts[address] = Account(address)
        state.judges[address] = Judge(address)
    return state


def apply(state: State, author: str, act: Act) -> None:
    """Enters an act of this author."""
    if (author, act.name) in state.entered:
        raise Refused("taken", f"{act.name}: {author} has entered it already")
    _enter(state, author, act)
    state.entered.add((author, act.name))


def _enter(state: State, author: str, act: Act) -> None:
    match act:
        case Register():
            _register(state, author, act)
        case Fund():
            _bring_in(state, author, act.name)
            state.treasury += act.amount
            state.brought_in += act.amount
        case Deposit():
            _bring_in(state, author, act.name)
            _account(state, act.node, act.name).stake += act.amount
            state.brought_in += act.amount
        case Unbond():
            _unbond(state, author, act)
        case Withdraw():
            _withdraw(state, author, act)
        case Work():
            _work(state, author, act)
        case Commit():
            _commit(state, author, act)
        case Reveal():
            _reveal(state, author, act)
        case Settle():
            _settle(state, author, act)
        case Challenge():
            _challenge(state, author, act)
        case Rule():
            _rule(state, author, act)
        case Head():
            if author not in state.judges:
                raise Refused("not-allowed", f"{act.name}: {author} is no validator, and only they sign heads")
        case Open():
            raise Refused("taken", f"open: run {state.run} is open already")


def _account(state: State, address: str, name: str) -> Account:
    account = state.accounts.get(address)
    if account is None:
        raise Refused("unknown", f"{name}: {address} is not registered; register first")
    return account


def _register(state: State, author: str, act: Register) -> None:
    by_coordinator = author == state.coordinator
    if not by_coordinator and (author != act.node or act.role != "worker"):
        raise Refused("not-allowed", f"{act.name}: only the coordinator registers others, and validators")
    known = state.judges if act.role == "validator" else state.accounts
    if act.node in known:
        raise Refused("taken", f"{act.name}: is registered already")
    if act.role == "validator":
        state.judges[act.node] = Judge(act.node)
    state.accounts.setdefault(act.node, Account(act.node))


def _bring_in(state: State, author: str, name: str) -> None:
    if author != state.coordinator:
        raise Refused("not-allowed", f"{name}: {author} is not the coordinator, who alone says what was paid in")


def _unbond(state: State, author: str, act: Unbond) -> None:
    account = _account(state, author, act.name)
    if account.stake < act.amount or act.amount == 0:
        raise Refused("short", f"{act.name}: {act.amount} of a stake of {account.stake}; give 1..{account.stake}")
    account.stake -= act.amount
    account.leaving += act.amount
    # Whatever the node handed in is settled, and can be challenged no more, before its stake is out of reach.
    account.leaves_at = state.clock + 2 * state.terms.patience + 2 * state.terms.window


def _withdraw(state: State, author: str, act: Withdraw) -> None:
    account = _account(state, author, act.name)
    now = holdings(state, account)
    left = now.leaving if state.clock >= account.leaves_at else 0
    if now.earned + left == 0:
        raise Refused("short", f"{act.name}: nothing can be paid out; {now.locked} locked, {now.leaving} leaving")
    account.lock.turn(state.window)
    account.earned, account.leaving = 0, account.leaving - left
    account.paid += now.earned + left
    state.paid_out += now.earned + left


def _work(state: State, author: str, act: Work) -> None:
    if author != state.coordinator:
        raise Refused("not-allowed", f"{act.name}: {author} is not the coordinator, who alone enters work")
    if act.batch != len(state.batches):
        raise Refused("order", f"{act.name}: the next batch is {len(state.batches)}")
    if act.step > state.clock + 1:
        raise Refused("order", f"{act.name}: step {act.step} after step {state.clock}; steps come one by one")
    if keccak_words(act.beacon).hex() != state.beacon:
        raise Refused("beacon", f"{act.name}: beacon {act.beacon[:12]} does not hash to {state.beacon[:12]}")
    judges = in_standing(state)
    if act.leaves and len(judges) < state.terms.quorum:
        raise Refused(
            "few-judges", f"{act.name}: {len(judges)} validators in standing, quorum {state.terms.quorum}; admit more"
        )
    jury = draw(act.beacon, judges, state.terms.drawn) if act.leaves else ()
    state.beacon = act.beacon
    state.clock = max(state.clock, act.step)
    state.treasury += state.held.turn(state.window)
    state.batches.append(Batch(act.batch, act.step, state.clock, act.leaves, act.root, act.plants, jury))


def _batch(state: State, number: int, name: str) -> Batch:
    if number >= len(state.batches):
        raise Refused("unknown", f"{name}: there is no batch {number}; the last is {len(state.batches) - 1}")
    return state.batches[number]


def _juror(state: State, author: str, number: int, name: str) -> Batch:
    batch = _batch(state, number, name)
    if author not in batch.jury:
        raise Refused("not-drawn", f"{name}: {author} was not drawn to judge batch {number}")
    return batch


def _commit(state: State, author: str, act: Commit) -> None:
    batch = _juror(state, author, act.batch, act.name)
    if author in batch.commits:
        raise Refused("taken", f"{act.name}: {author} has committed to other votes already")
    if len(batch.jury) == 1 or act.hash == NO_HASH:
        raise Refused("pointless", f"{act.name}: seals nothing, or only one was drawn, who reveals at once")
    if batch.reveals or state.clock >= batch.entered + state.terms.patience:
        raise Refused("late", f"{act.name}: the votes are being revealed, no more commitments are taken")
    batch.commits[author] = act.hash


def _reveal(state: State, author: str, act: Reveal) -> None:
    batch = _juror(state, author, act.batch, act.name)
    if batch.outcomes:
        raise Refused("late", f"{act.name}: batch {act.batch} is settled")
    if author in batch.reveals:
        raise Refused("taken", f"{act.name}: {author} has revealed other votes already")
    if len(act.votes) != len(batch.leaves) or len(act.evidence) != act.votes.count("r"):
        raise Refused(
            "mismatch",
            f"{act.name}: {len(act.votes)} votes and evidence for {len(act.evidence)}; batch {act.batch} has "
            f"{len(batch.leaves)} submissions, and each reject needs its evidence",
        )
    if len(batch.jury) > 1:
        if batch.commits.get(author) != vote_hash(state.run, author, act):
            raise Refused("mismatch", f"{act.name}: these are not the votes that {author} committed to")
        if len(batch.commits) < len(batch.jury) and state.clock < batch.entered + state.terms.patience:
            raise Refused("early", f"{act.name}: {len(batch.commits)} of {len(batch.jury)} validators have committed")
    batch.reveals[author] = act


def _settle(state: State, author: str, act: Settle) -> None:
    batch = _batch(state, act.batch, act.name)
    if batch.outcomes:
        raise Refused("taken", f"{act.name}: is settled already")
    if not batch.leaves:
        raise Refused("pointless", f"{act.name}: batch {act.batch} is empty")
    overdue = state.clock >= batch.entered + 2 * state.terms.patience
    if len(batch.reveals) < len(batch.jury) and not overdue:
        raise Refused("early", f"{act.name}: {len(batch.reveals)} of {len(batch.jury)} validators have revealed")
    if act.plants or batch.plants != NO_HASH:
        opened = len(act.plants) == len(batch.leaves)
        if opened and plants_hash(state.run, act.batch, act.plants, act.salt) != batch.plants:
            raise Refused("mismatch", f"{act.name}: these are not the plants that were committed to")
        if not opened and (act.plants or author == state.coordinator or not overdue):
            raise Refused("mismatch", f"{act.name}: has plants, which the coordinator opens: a letter a submission")
    batch.outcomes = _count(state, batch, act.plants)
    batch.settled = state.window
    for leaf, outcome in zip(batch.leaves, batch.outcomes, strict=True):
        if outcome == "x":
            continue
        state.seen.add((batch.step, leaf.submission))
        state.accounts[leaf.node].submitted += 1
        state.accounts[leaf.node].tokens += leaf.tokens
        if outcome == "a":
            _accept(state, leaf)
    for index, outcome in enumerate(batch.outcomes):
        if outcome == "r":  # last, so that what the same batch earned is void as well
            batch.taken[index] = _punish(state, batch.leaves[index])
    _judge_judges(state, batch, act.plants)


def _count(state: State, batch: Batch, plants: str) -> str:
    """The outcomes; what was planted, was settled before or is of nobody registered does not count (x)."""
    outcomes, seen = [], set[int]()
    for index, leaf in enumerate(batch.leaves):
        votes = [reveal.votes[index] for reveal in batch.reveals.values()]
        again = leaf.submission in seen or (batch.step, leaf.submission) in state.seen
        if (plants and plants[index] != ".") or again or leaf.node not in state.accounts:
            outcomes.append("x")
        else:
            outcomes.append(next((kind for kind in "ar" if votes.count(kind) >= state.terms.quorum), "v"))
            seen.add(leaf.submission)
    return "".join(outcomes)


def _accept(state: State, leaf: Leaf) -> None:
    account = state.accounts[leaf.node]
    amount = 0 if status(state, account) == "banned" else min(state.terms.rate * leaf.tokens, state.treasury)
    state.treasury -= amount
    account.earned += account.lock.add(amount, state.window)
    account.accepted += 1
    account.tokens_accepted += leaf.tokens
    account.earned_ever += amount


def _punish(state: State, leaf: Leaf) -> Taken:
    account = state.accounts[leaf.node]
    account.earned += account.lock.turn(state.window)
    slashed = min(state.terms.slash, account.stake + account.leaving)
    from_stake = min(slashed, account.stake)
    account.stake -= from_stake
    account.leaving -= slashed - from_stake
    voided = account.lock.empty()
    state.held.add(slashed + voided, state.window)
    account.offences += 1
    account.suspended_until = state.clock + state.terms.suspend_steps
    account.slashed += slashed
    account.voided += voided
    return Taken(slashed, voided)


def _judge_judges(state: State, batch: Batch, plants: str) -> None:
    for address in batch.jury:
        judge = state.judges[address]
        reveal = batch.reveals.get(address)
        if reveal is None:
            judge.missed += 1
            _blame(judge, MISSED)
            continue
        judge.judged += len(batch.leaves)
        wrong = sum(planted not in (".", vote) for planted, vote in zip(plants, reveal.votes, strict=bool(plants)))
        judge.misjudged += wrong
        if wrong:
            _blame(judge, wrong * MISJUDGED)
        elif judge.standing:
            judge.standing = min(FULL_STANDING, judge.standing + REGAINED)


def _blame(judge: Judge, points: int) -> None:
    judge.standing = max(0, judge.standing - points)


def _challenge(state: State, author: str, act: Challenge) -> None:
    batch = _open_to_challenge(state, act.batch, act.index, act.name)
    _account(state, author, act.name)
    if (act.index, author) in batch.challenges:
        raise Refused("taken", f"{act.name}: {author} has challenged it already")
    votes = {reveal.votes[act.index] for reveal in batch.reveals.values()} - {"v"}
    if batch.outcomes[act.index] == act.claim and votes <= {act.claim}:
        raise Refused("pointless", f"{act.name}: nobody says otherwise")
    batch.challenges[act.index, author] = act


def _open_to_challenge(state: State, number: int, index: int, name: str) -> Batch:
    batch = _batch(state, number, name)
    if not batch.outcomes or index >= len(batch.leaves):
        raise Refused("early", f"{name}: has no verdict yet")
    if state.window >= batch.settled + 2:
        raise Refused("late", f"{name}: could be challenged until window {batch.settled + 1}, this is {state.window}")
    if batch.outcomes[index] == "x":
        raise Refused("pointless", f"{name}: does not count")
    if index in batch.rulings:
        raise Refused("taken", f"{name}: the arbiter has ruled on it")
    return batch


def _rule(state: State, author: str, act: Rule) -> None:
    if author != state.terms.arbiter:
        raise Refused("not-allowed", f"{act.name}: {author} is not the arbiter, who alone rules on challenges")
    batch = _open_to_challenge(state, act.batch, act.index, act.name)
    challenge = batch.challenges.get((act.index, act.challenger))
    if challenge is None:
        raise Refused("unknown", f"{act.name}: {act.challenger} has not challenged it")
    if (act.index, act.challenger) in batch.answered:
        raise Refused("taken", f"{act.name}: the arbiter has refuted that challenge")
    if not act.upheld:
        challenger = state.accounts[act.challenger]
        bond = min(state.terms.bond, challenger.stake)
        challenger.stake -= bond
        challenger.slashed += bond
        state.held.add(bond, state.window)
        batch.answered.add((act.index, act.challenger))
        return
    batch.rulings[act.index] = challenge.claim
    for address, reveal in batch.reveals.items():
        if reveal.votes[act.index] not in ("v", challenge.claim):
            state.judges[address].refuted += 1
            _blame(state.judges[address], REFUTED)
    if batch.outcomes[act.index] != challenge.claim:
        _correct(state, batch, act.index, challenge.claim)


def _correct(state: State, batch: Batch, index: int, truth: str) -> None:
    leaf = batch.leaves[index]
    account = state.accounts[leaf.node]
    before = batch.outcomes[index]
    batch.outcomes = batch.outcomes[:index] + truth + batch.outcomes[index + 1 :]
    if truth == "r":
        if before == "a":
            account.accepted -= 1
            account.tokens_accepted -= leaf.tokens
        batch.taken[index] = _punish(state, leaf)
        return
    if before == "r":
        taken = batch.taken.pop(index)
        state.held.take(taken.stake + taken.voided)
        account.stake += taken.stake
        account.earned += account.lock.add(taken.voided, state.window)
        account.offences -= 1
        account.suspended_until = 0
        account.slashed -= taken.stake
        account.voided -= taken.voided
    _accept(state, leaf)
