"""Verdicts on the ledger: batches entered, commit and reveal of votes, settlement, challenges, rulings."""

from shoal.ledger import money
from shoal.ledger.acts import (
    NO_HASH,
    Challenge,
    Commit,
    Reveal,
    Rule,
    Settle,
    Work,
    plants_hash,
    vote_hash,
)
from shoal.ledger.jury import draw
from shoal.ledger.merkle import keccak_words
from shoal.ledger.refusal import Refused
from shoal.ledger.state import FULL_STANDING, Batch, Judge, State, in_standing

# Three false accusations that a replay shows and a validator is out; three batches missed cost as much as one of them.
REFUTED = MISJUDGED = 34
MISSED = 10
REGAINED = 1


def work(state: State, author: str, act: Work) -> None:
    if author != state.coordinator:
        raise Refused(
            "not-allowed", f"{act.name}: {author} is not the coordinator, and only the coordinator enters work"
        )
    if act.batch != len(state.batches):
        raise Refused("order", f"{act.name}: the next batch is {len(state.batches)}")
    if act.step > len(state.links):
        raise Refused("order", f"{act.name}: step {act.step}, the next is {len(state.links)}; steps come one by one")
    if act.leaves and state.closed:
        raise Refused("late", f"{act.name}: the ledger is closed, no more submissions are entered")
    is_next = act.step == len(state.links)
    if not act.leaves and not is_next:
        raise Refused("pointless", f"{act.name}: is empty, and step {act.step} was begun before")
    # All batches of a step have one link: entering more of them draws nobody else.
    if (keccak_words(act.beacon).hex() != state.beacon) if is_next else (act.beacon != state.links[act.step]):
        raise Refused("beacon", f"{act.name}: beacon {act.beacon[:12]} is not the link of step {act.step}")
    judges = in_standing(state)
    if act.leaves and len(judges) < state.terms.quorum:
        raise Refused(
            "few-judges", f"{act.name}: {len(judges)} validators in standing, quorum {state.terms.quorum}; admit more"
        )
    jury = draw(act.beacon, judges, state.terms.drawn) if act.leaves else ()
    if is_next:
        state.links.append(act.beacon)
    state.advanced = 0
    state.unsettled += bool(act.leaves)
    move_clock(state, max(state.clock, act.step))
    state.batches.append(Batch(act.batch, act.step, state.clock, act.leaves, act.root, act.plants, jury))


def move_clock(state: State, step: int) -> None:
    state.clock = step
    state.treasury += state.held.turn(state.window)


def _batch(state: State, number: int, name: str) -> Batch:
    if number >= len(state.batches):
        raise Refused("unknown", f"{name}: there is no batch {number}; the last is {len(state.batches) - 1}")
    return state.batches[number]


def _juror(state: State, author: str, number: int, name: str) -> Batch:
    batch = _batch(state, number, name)
    if author not in batch.jury:
        raise Refused("not-drawn", f"{name}: {author} was not drawn to judge batch {number}")
    return batch


def commit(state: State, author: str, act: Commit) -> None:
    batch = _juror(state, author, act.batch, act.name)
    if author in batch.commits:
        raise Refused("taken", f"{act.name}: {author} has committed to other votes already")
    if len(batch.jury) == 1 or act.hash == NO_HASH:
        raise Refused("pointless", f"{act.name}: seals nothing, or only one was drawn, who reveals at once")
    if batch.reveals or state.clock >= batch.entered + state.terms.patience:
        raise Refused("late", f"{act.name}: the votes are being revealed, so no more commitments are accepted")
    batch.commits[author] = act.hash


def reveal(state: State, author: str, act: Reveal) -> None:
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


def settle(state: State, author: str, act: Settle) -> None:
    batch = _batch(state, act.batch, act.name)
    if batch.outcomes:
        raise Refused("taken", f"{act.name}: is settled already")
    if not batch.leaves:
        raise Refused("pointless", f"{act.name}: batch {act.batch} is empty")
    overdue = _is_overdue(state, batch)
    if len(batch.reveals) < len(batch.jury) and not overdue:
        raise Refused("early", f"{act.name}: {len(batch.reveals)} of {len(batch.jury)} validators have revealed")
    if act.plants or batch.plants != NO_HASH:
        opened = len(act.plants) == len(batch.leaves)
        if opened and plants_hash(state.run, act.batch, act.plants, act.salt) != batch.plants:
            raise Refused("mismatch", f"{act.name}: these are not the plants that were committed to")
        if not opened and (act.plants or author == state.coordinator or not overdue):
            raise Refused("mismatch", f"{act.name}: needs the plants, one letter per submission, from the coordinator")
    batch.outcomes = _count(state, batch, act.plants)
    batch.settled = state.ended = state.window
    state.unsettled -= 1
    counted = [(i, leaf) for i, leaf in enumerate(batch.leaves) if batch.outcomes[i] != "x"]
    for index, leaf in counted:
        state.seen.add((batch.step, leaf.submission))
        if batch.outcomes[index] == "a":
            money.accept(state, leaf)
    for index, leaf in counted:
        account = state.accounts.get(leaf.node)
        if account is None:
            continue
        account.submitted += 1
        account.tokens += leaf.tokens
        if batch.outcomes[index] == "r":  # last, so that what the same batch earned is void as well
            batch.taken[index] = money.punish(state, account, leaf)
    _judge_judges(state, batch, act.plants)


def _is_overdue(state: State, batch: Batch) -> bool:
    return state.clock >= batch.entered + 2 * state.terms.patience


def is_due(state: State, batch: Batch) -> bool:
    """Whether all have said what they found, or were given long enough."""
    return not batch.is_closed and (len(batch.reveals) == len(batch.jury) or _is_overdue(state, batch))


def _count(state: State, batch: Batch, plants: str) -> str:
    """The outcomes; what was planted or was settled before does not count (x)."""
    outcomes, seen = [], set[int]()
    for index, leaf in enumerate(batch.leaves):
        votes = [reveal.votes[index] for reveal in batch.reveals.values()]
        again = leaf.submission in seen or (batch.step, leaf.submission) in state.seen
        if (plants and plants[index] != ".") or again:
            outcomes.append("x")
        else:
            outcomes.append(next((kind for kind in "ar" if votes.count(kind) >= state.terms.quorum), "v"))
            seen.add(leaf.submission)
    return "".join(outcomes)


def _judge_judges(state: State, batch: Batch, plants: str) -> None:
    """Pays for every vote that is as it was decided, or as was known before; none if a plant shows a false one."""
    known = plants or "." * len(batch.leaves)
    truth = [outcome if plant == "." else plant for plant, outcome in zip(known, batch.outcomes, strict=True)]
    for address in batch.jury:
        judge = state.judges[address]
        reveal = batch.reveals.get(address)
        if reveal is None:
            judge.missed += 1
            _blame(judge, MISSED)
            continue
        judge.judged += len(batch.leaves)
        wrong = sum(planted not in (".", vote) for planted, vote in zip(known, reveal.votes, strict=True))
        judge.misjudged += wrong
        if wrong:
            _blame(judge, wrong * MISJUDGED)
            money.void(state, state.accounts[address])
            continue
        if judge.standing:
            judge.standing = min(FULL_STANDING, judge.standing + REGAINED)
        right = sum(vote == true != "v" for vote, true in zip(reveal.votes, truth, strict=True))
        money.pay(state, state.accounts[address], right * state.terms.judge_pay)


def _blame(judge: Judge, points: int) -> None:
    judge.standing = max(0, judge.standing - points)


def challenge(state: State, author: str, act: Challenge) -> None:
    batch = _open_to_challenge(state, act.batch, act.index, act.name)
    account = money.account_of(state, author, act.name)
    if (act.index, author) in batch.challenges:
        raise Refused("taken", f"{act.name}: {author} has challenged it already")
    votes = {reveal.votes[act.index] for reveal in batch.reveals.values()} - {"v"}
    if batch.outcomes[act.index] == act.claim and votes <= {act.claim}:
        raise Refused("pointless", f"{act.name}: nobody says otherwise")
    own = batch.taken.get(act.index) if batch.leaves[act.index].node == author else None
    batch.bonds[act.index, author] = money.put_up_bond(state, account, own, act.name)
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


def rule(state: State, author: str, act: Rule) -> None:
    if author != state.terms.arbiter:
        raise Refused(
            "not-allowed", f"{act.name}: {author} is not the arbiter, and only the arbiter rules on challenges"
        )
    batch = _open_to_challenge(state, act.batch, act.index, act.name)
    challenge = batch.challenges.get((act.index, act.challenger))
    if challenge is None:
        raise Refused("unknown", f"{act.name}: {act.challenger} has not challenged it")
    if (act.index, act.challenger) in batch.answered:
        raise Refused("taken", f"{act.name}: the arbiter has refuted that challenge")
    challenger, bond = state.accounts[act.challenger], batch.bonds[act.index, act.challenger]
    if not act.upheld:
        money.take_bond(state, challenger, bond)
        batch.answered.add((act.index, act.challenger))
        return
    money.return_bond(state, challenger, bond)
    batch.rulings[act.index] = challenge.claim
    for address, reveal in batch.reveals.items():
        if reveal.votes[act.index] in ("v", challenge.claim) or act.excused:
            continue
        state.judges[address].refuted += 1
        # An honest validator accepts after a look at some answers: a node that spoils one, and has a friend challenge
        # it, must not cost it anything. Whether it looks at all is what planted samples show.
        if challenge.claim == "a":
            _blame(state.judges[address], REFUTED)
            money.void(state, state.accounts[address])
    if batch.outcomes[act.index] != challenge.claim:
        _correct(state, batch, act.index, challenge.claim)


def _correct(state: State, batch: Batch, index: int, truth: str) -> None:
    leaf = batch.leaves[index]
    account = state.accounts.get(leaf.node)
    before = batch.outcomes[index]
    batch.outcomes = batch.outcomes[:index] + truth + batch.outcomes[index + 1 :]
    if truth == "a":
        if account is not None and index in batch.taken:
            money.give_back(state, account, batch.taken.pop(index))
        money.accept(state, leaf)
    elif account is not None:
        if before == "a":
            account.accepted -= 1
            account.tokens_accepted -= leaf.tokens
        batch.taken[index] = money.punish(state, account, leaf)
