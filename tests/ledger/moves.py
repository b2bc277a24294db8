"""Random acts that mostly make sense: four numbers, read against the state that they meet."""

from hypothesis import strategies as st

from shoal.crypto.keys import Key
from shoal.ledger.acts import (
    NO_HASH,
    Act,
    Advance,
    Challenge,
    Close,
    Commit,
    Deposit,
    Fund,
    Head,
    Refund,
    Register,
    Reveal,
    Rule,
    Settle,
    Stake,
    Unbond,
    Withdraw,
    Work,
    plants_hash,
    vote_hash,
)
from shoal.ledger.state import State
from tests.support.ledgers import (
    ARBITER,
    COORDINATOR,
    EVIDENCE,
    KEYS,
    LINKS,
    NODES,
    RUN,
    SALT,
    VALIDATORS,
    leaf,
    reveal,
)

Move = tuple[int, int, int, int]
_number = st.integers(0, (1 << 16) - 1)
MAX_KIND = 19
MOVES = st.tuples(st.integers(0, MAX_KIND), _number, _number, _number)
PLANTS = ("", "", "a", "r", ".a", "r.", "a.r", "...")


def act_of(state: State, move: Move) -> tuple[Key, Act]:
    """Who does what, by these numbers."""
    kind, a, b, c = move
    node = NODES[a % len(NODES)]
    match kind:
        case 0:
            return (COORDINATOR, node)[b % 4 == 0], Register(node=node.address)
        case 1:
            return (COORDINATOR, COORDINATOR, node)[c % 3], Fund(id=str(a % 50), amount=b)
        case 2:
            author = (COORDINATOR, COORDINATOR, node)[a // 3 % 3]
            return author, Deposit(id=str(b % 50), node=node.address, amount=c % 2000)
        case 3:
            return node, Unbond(id=str(b % 50), amount=c % 1500)
        case 4:
            return node, Withdraw(id=str(b % 50))
        case 5:
            return COORDINATOR, _work(state, a, b, c)
        case 6 | 7 | 8 | 9 | 10 | 11:
            return _vote(state, a, b, c)
        case 12:
            return _settle(state, a, b)
        case 13:
            batch, index = _settled(state, a)
            return node, Challenge(batch=batch, index=index, claim="a" if c % 2 else "r", evidence=EVIDENCE)
        case 14:
            return ARBITER, _ruling(state, a, b)
        case 15:
            return node, Stake(id=str(b % 50), amount=c % 300)
        case 16:
            return node, Advance(step=state.clock + (1 if b % 8 else 2))
        case 17:
            return (COORDINATOR, node)[b % 2], Close()
        case 18:
            return (COORDINATOR, node)[b % 2], Refund()
        case _:
            return VALIDATORS[a % 3], Head(number=b, hash=NO_HASH)


def _work(state: State, a: int, b: int, c: int) -> Work:
    number = len(state.batches)
    step = max(0, len(state.links) - (0, 1, 1, 2)[a % 4])
    count = 0 if state.closed and c % 8 else (3, 1, 2, 0)[b % 4]
    leaves = tuple(leaf((b + 7 * i) % 90, NODES[(c + i) % len(NODES)], tokens=(a + i) % 300) for i in range(count))
    plants = _plants(number, len(leaves))
    sealed = plants_hash(RUN, number, plants, SALT) if plants else NO_HASH
    return Work(batch=number, step=step, leaves=leaves, beacon=LINKS[step + 1], plants=sealed)


def _plants(number: int, leaves: int) -> str:
    plants = PLANTS[number % len(PLANTS)]
    return plants if len(plants) == leaves else ""


def _votes(number: int, who: str, leaves: int, a: int) -> Reveal:
    """Of one validator on one batch always the same, so that it reveals what it committed to."""
    seed = number * 31 + int(who, 16) % 97 * (a % 3 == 0)
    return reveal(number, "".join("aarav"[(seed + i * i) % 5] for i in range(leaves)))


def _vote(state: State, a: int, b: int, c: int) -> tuple[Key, Act]:
    """The next thing that a batch waits for, or, now and then, anything else."""
    waiting = [batch for batch in state.batches if batch.leaves and not batch.outcomes][-2:]
    if not waiting:
        return VALIDATORS[a % 3], Commit(batch=a % 5, hash=NO_HASH)
    batch = waiting[a % len(waiting)]
    commits = [who for who in batch.jury if who not in batch.commits]
    reveals = [who for who in batch.jury if who not in batch.reveals]
    who = (commits or reveals or list(batch.jury))[b % len(commits or reveals or batch.jury)]
    votes = _votes(batch.number, who, len(batch.leaves), batch.number)
    if commits and c % 20:
        return KEYS[who], Commit(batch=batch.number, hash=vote_hash(RUN, who, votes))
    return KEYS[who], votes


def _settle(state: State, a: int, b: int) -> tuple[Key, Settle]:
    waiting = [batch for batch in state.batches if batch.leaves and not batch.outcomes]
    ready = [batch for batch in waiting if len(batch.reveals) == len(batch.jury)] or waiting
    number = ready[a % len(ready)].number if ready else a % 5
    plants = _plants(number, len(state.batches[number].leaves)) if ready else ""
    author = (COORDINATOR, COORDINATOR, NODES[0])[b % 3]
    return author, Settle(batch=number, plants=plants if b % 7 else "", salt=SALT)


def _settled(state: State, a: int) -> tuple[int, int]:
    settled = [batch for batch in state.batches if batch.outcomes][-4:]
    if not settled:
        return a % 5, 0
    batch = settled[a % len(settled)]
    return batch.number, (a // 7) % len(batch.leaves)


def _ruling(state: State, a: int, b: int) -> Rule:
    open_ = [(batch.number, *key) for batch in state.batches[-6:] for key in batch.challenges]
    number, index, who = open_[a % len(open_)] if open_ else (a % 5, 0, NODES[0].address)
    return Rule(batch=number, index=index, challenger=who, upheld=bool(b % 3), excused=b % 5 == 0)
