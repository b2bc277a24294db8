# pragma version ==0.4.3
# pragma optimize gas
# pragma evm-version cancun
"""
@title Shoal's ledger on a chain
@notice The rules of shoal/ledger/rules.py, with stake and earnings held in wei by this contract. A revert gives the code
        of the rule that was broken. The author of an act is who sends the transaction.
"""

struct Terms:
    arbiter: address
    drawn: uint256
    quorum: uint256
    rate: uint256
    judge_pay: uint256
    stake_per_lease: uint256
    leases: uint256
    welcome: uint256
    slash: uint256
    slash_files: uint256
    suspend_steps: uint256
    ban_after: uint256
    window: uint256
    patience: uint256
    bond: uint256
    stall: uint256
    beacon: bytes32

struct Leaf:
    submission: uint256
    node: address
    sha256: bytes32
    tokens: uint256

struct Account:
    registered: bool
    welcomed: bool
    stake: uint256
    gift: uint256
    leaving: uint256
    leaves_at: uint256
    window: uint256
    fresh: uint256
    old: uint256
    earned: uint256
    accepted: uint256
    offences: uint256
    suspended_until: uint256

struct Batch:
    root: bytes32
    step: uint256
    entered: uint256
    count: uint256
    plants: bytes32
    commits: uint256
    reveals: uint256
    settled: bool
    window: uint256
    accepted: uint256
    rejected: uint256
    excluded: uint256
    ruled: uint256

struct Vote:
    sealed: bytes32
    revealed: bool
    accepted: uint256
    rejected: uint256

struct Taken:
    node: address
    stake: uint256
    gift: uint256
    voided: uint256

struct Standing:
    registered: bool
    stake: uint256
    gift: uint256
    leaving: uint256
    locked: uint256
    earned: uint256
    accepted: uint256
    offences: uint256
    leases: uint256
    status: uint256

struct Totals:
    clock: uint256
    batches: uint256
    treasury: uint256
    held: uint256
    brought_in: uint256
    paid_out: uint256
    unsettled: uint256
    closed: bool
    finished: bool

# Everything that the rules need of an act, so that anybody adds up the same state from the logs alone, whoever sent the
# transaction; but for the submissions of a batch, which stand in the coordinator's own, after what `work` is called with.
event Entered:
    author: indexed(address)
    kind: indexed(uint256)
    key: indexed(uint256)
    one: uint256
    two: uint256
    three: uint256
    evidence: DynArray[bytes32, MAX_LEAVES]

MAX_LEAVES: constant(uint256) = 256
MAX_JUDGES: constant(uint256) = 32
FULL_STANDING: constant(uint256) = 100
REFUTED: constant(uint256) = 34
MISJUDGED: constant(uint256) = 34
MISSED: constant(uint256) = 10

# Numbers of the kinds of acts, as in shoal/ledger/evm/calls.py
REGISTER: constant(uint256) = 1
FUND: constant(uint256) = 2
DEPOSIT: constant(uint256) = 3
UNBOND: constant(uint256) = 4
WITHDRAW: constant(uint256) = 5
WORK: constant(uint256) = 6
COMMIT: constant(uint256) = 7
REVEAL: constant(uint256) = 8
SETTLE: constant(uint256) = 9
CHALLENGE: constant(uint256) = 10
RULE: constant(uint256) = 11
STAKE: constant(uint256) = 12
ADVANCE: constant(uint256) = 13
CLOSE: constant(uint256) = 14
REFUND: constant(uint256) = 15

# Bits of a challenge
ACCEPT: constant(uint256) = 1
REJECT: constant(uint256) = 2
BY_GIFT: constant(uint256) = 4
BY_STAKE: constant(uint256) = 8
REFUTED_CHALLENGE: constant(uint256) = 16

COORDINATOR: immutable(address)
RUN: immutable(bytes32)
TERMS: immutable(Terms)
LEAVING_STEPS: immutable(uint256)
MAX_SEATS: immutable(uint256)

clock: uint256
moved_at: uint256  # when, in seconds
advanced: uint256
begun: uint256  # steps that have a link
links: HashMap[uint256, bytes32]
closed: bool
ended: uint256
unsettled: uint256
treasury: uint256
funded: HashMap[address, uint256]
funded_total: uint256
forfeited: uint256
held_fresh: uint256
held_old: uint256
held_window: uint256
brought_in: uint256
paid_out: uint256
accounts: HashMap[address, Account]
judges: DynArray[address, MAX_JUDGES]
is_judge: HashMap[address, bool]
since: HashMap[address, uint256]
standing: HashMap[address, uint256]
batch_count: uint256
batches: HashMap[uint256, Batch]
juries: HashMap[uint256, DynArray[address, MAX_JUDGES]]
votes: HashMap[uint256, HashMap[address, Vote]]
taken: HashMap[uint256, HashMap[uint256, Taken]]
challenges: HashMap[uint256, HashMap[uint256, HashMap[address, uint256]]]
seen: HashMap[uint256, HashMap[uint256, uint256]]
done: HashMap[bytes32, bool]


@deploy
def __init__(run: bytes32, terms: Terms, validators: DynArray[address, MAX_JUDGES]):
    assert terms.quorum > 0 and terms.quorum <= terms.drawn and terms.drawn < 2 * terms.quorum, "mismatch"
    assert terms.window > 0 and terms.patience > 0 and terms.stake_per_lease > 0, "mismatch"
    COORDINATOR = msg.sender
    RUN = run
    TERMS = terms
    LEAVING_STEPS = 2 * terms.patience + 2 * terms.window
    MAX_SEATS = min(MAX_JUDGES, max(2 * len(validators), terms.drawn))
    self.moved_at = block.timestamp
    for validator: address in validators:
        assert not self.is_judge[validator], "mismatch"
        self._admit(validator, 0)


@internal
def _admit(validator: address, since: uint256):
    self.is_judge[validator] = True
    self.since[validator] = since
    self.standing[validator] = FULL_STANDING
    self.judges.append(validator)
    self.accounts[validator].registered = True


@internal
def _once(kind: uint256, name: bytes32, one: uint256, two: uint256):
    id: bytes32 = keccak256(abi_encode(msg.sender, kind, name))
    assert not self.done[id], "taken"
    self.done[id] = True
    self._enter(kind, convert(name, uint256), one, two, 0)


@internal
def _enter(kind: uint256, key: uint256, one: uint256, two: uint256, three: uint256):
    log Entered(author=msg.sender, kind=kind, key=key, one=one, two=two, three=three, evidence=[])


# Nodes and their credits

@external
def register(validator: address):
    assert msg.sender == COORDINATOR, "not-allowed"
    assert not self.is_judge[validator], "taken"
    assert len(self.judges) < MAX_SEATS, "full"
    self._admit(validator, self.clock + LEAVING_STEPS)
    self._enter(REGISTER, convert(validator, uint256), 0, 0, 0)


@external
@payable
def fund(name: bytes32):
    self._once(FUND, name, msg.value, 0)
    assert not self.closed, "late"
    self.treasury += msg.value
    self.funded[msg.sender] += msg.value
    self.funded_total += msg.value
    self.brought_in += msg.value


@external
@payable
def deposit(name: bytes32, node: address):
    self._once(DEPOSIT, name, msg.value, convert(node, uint256))
    assert msg.value > 0, "short"
    self.accounts[node].registered = True
    self.accounts[node].stake += msg.value
    self.brought_in += msg.value


@external
def stake(name: bytes32, amount: uint256):
    assert self.accounts[msg.sender].registered, "unknown"
    self._once(STAKE, name, amount, 0)
    self._turn(msg.sender)
    assert amount > 0 and self.accounts[msg.sender].earned >= amount, "short"
    self.accounts[msg.sender].earned -= amount
    self.accounts[msg.sender].stake += amount


@external
def unbond(name: bytes32, amount: uint256):
    assert self.accounts[msg.sender].registered, "unknown"
    assert amount > 0 and self.accounts[msg.sender].stake >= amount, "short"
    self._once(UNBOND, name, amount, 0)
    self._let_leave(msg.sender, amount)


@internal
def _let_leave(node: address, amount: uint256):
    self.accounts[node].stake -= amount
    self.accounts[node].leaving += amount
    self.accounts[node].leaves_at = self.clock + LEAVING_STEPS


@external
@nonreentrant
def withdraw(name: bytes32):
    assert self.accounts[msg.sender].registered, "unknown"
    self._once(WITHDRAW, name, 0, 0)
    self._turn(msg.sender)
    amount: uint256 = self.accounts[msg.sender].earned
    self.accounts[msg.sender].earned = 0
    if self.clock >= self.accounts[msg.sender].leaves_at or self._finished():
        amount += self.accounts[msg.sender].leaving
        self.accounts[msg.sender].leaving = 0
    assert amount > 0, "short"
    self.paid_out += amount
    raw_call(msg.sender, b"", value=amount)


@internal
@view
def _finished() -> bool:
    """
    @notice Whether nothing can change any more but by withdrawing.
    """
    return self.closed and self.unsettled == 0 and self.clock // TERMS.window >= self.ended + 3


@external
def close():
    assert not self.closed, "taken"
    assert msg.sender == COORDINATOR or self.advanced >= LEAVING_STEPS, "not-allowed"
    self.closed = True
    self.ended = self.clock // TERMS.window
    self._enter(CLOSE, 0, 0, 0, 0)


@external
@nonreentrant
def refund():
    """
    @notice The sender's share of what is left of the treasury; what punishments took goes to nobody.
    """
    assert self._finished(), "early"
    brought: uint256 = self.funded[msg.sender]
    share: uint256 = 0
    if brought > 0 and self.treasury > self.forfeited:
        share = brought * (self.treasury - self.forfeited) // self.funded_total
    assert share > 0, "short"
    self.funded[msg.sender] = 0
    self.funded_total -= brought
    self.treasury -= share
    self.paid_out += share
    self._enter(REFUND, 0, 0, 0, 0)
    raw_call(msg.sender, b"", value=share)


@internal
def _turn(node: address):
    """
    @notice Lets go what a node's lock has held long enough.
    """
    passed: uint256 = self.clock // TERMS.window - self.accounts[node].window
    if passed == 0:
        return
    old: uint256 = self.accounts[node].old
    fresh: uint256 = self.accounts[node].fresh
    let_go: uint256 = old
    if passed > 1:
        let_go += fresh
        fresh = 0
    if let_go > 0:
        self.accounts[node].earned += let_go
    if old != fresh:
        self.accounts[node].old = fresh
    self.accounts[node].fresh = 0
    self.accounts[node].window += passed


@internal
def _pay(node: address, wanted: uint256):
    self._turn(node)
    amount: uint256 = min(wanted, self.treasury)
    if amount > 0:
        self.treasury -= amount
        self.accounts[node].fresh += amount


@internal
def _accept(node: address, tokens: uint256):
    self.accounts[node].registered = True
    self.accounts[node].accepted += 1
    if self.accounts[node].offences >= TERMS.ban_after:
        return
    self._pay(node, TERMS.rate * tokens)
    if not self.accounts[node].welcomed:
        self.accounts[node].welcomed = True
        self.accounts[node].gift += TERMS.welcome


@internal
def _punish(batch: uint256, index: uint256, node: address, tokens: uint256):
    voided: uint256 = self._void(node)
    wanted: uint256 = max(TERMS.slash, TERMS.slash_files * TERMS.rate * tokens)
    from_stake: uint256 = min(wanted, self.accounts[node].stake)
    from_leaving: uint256 = min(wanted - from_stake, self.accounts[node].leaving)
    gift: uint256 = min(TERMS.slash, self.accounts[node].gift)
    self.accounts[node].stake -= from_stake
    self.accounts[node].leaving -= from_leaving
    self.accounts[node].gift -= gift
    self.accounts[node].offences += 1
    self.accounts[node].suspended_until = self.clock + TERMS.suspend_steps
    self._hold(from_stake + from_leaving)
    self.taken[batch][index] = Taken(node=node, stake=from_stake + from_leaving, gift=gift, voided=voided)


@internal
def _void(node: address) -> uint256:
    """
    @notice Takes everything locked.
    """
    self._turn(node)
    amount: uint256 = self.accounts[node].fresh + self.accounts[node].old
    self.accounts[node].fresh = 0
    self.accounts[node].old = 0
    self._hold(amount)
    return amount


@internal
def _hold(amount: uint256):
    if amount > 0:
        self.held_fresh += amount
        self.forfeited += amount


# Work and its judgement

@external
def work(batch: uint256, step: uint256, root: bytes32, count: uint256, beacon: bytes32, plants: bytes32):
    assert msg.sender == COORDINATOR, "not-allowed"
    begun: uint256 = self.begun
    assert batch == self.batch_count and step <= begun and count <= MAX_LEAVES, "order"
    assert count == 0 or not self.closed, "late"
    assert count > 0 or step == begun, "pointless"
    # All batches of a step have one link: entering more of them draws nobody else.
    if step < begun:
        assert beacon == self.links[step], "beacon"
    else:
        before: bytes32 = TERMS.beacon
        if step > 0:
            before = self.links[step - 1]
        assert keccak256(beacon) == before, "beacon"
        self.links[step] = beacon
        self.begun = step + 1
    if count > 0:
        self.juries[batch] = self._draw(beacon)
        self.unsettled += 1
    self.batch_count = batch + 1
    if self.advanced > 0:
        self.advanced = 0
    if step > self.clock:
        self._move_clock(step)
    self.batches[batch].root = root
    self.batches[batch].step = step
    self.batches[batch].entered = self.clock
    self.batches[batch].count = count
    self.batches[batch].plants = plants
    self._enter(WORK, batch, step, convert(beacon, uint256), convert(plants, uint256))


@external
def advance(step: uint256):
    """
    @notice Moves a clock that stood still for too long, so that nobody's money waits for a coordinator that is gone.
    """
    assert step == self.clock + 1, "order"
    assert block.timestamp >= self.moved_at + TERMS.stall, "early"
    self.advanced += 1
    self._move_clock(step)
    self._enter(ADVANCE, step, 0, 0, 0)


@internal
def _move_clock(step: uint256):
    self.clock = step
    self.moved_at = block.timestamp
    self._turn_held()


@internal
def _turn_held():
    window: uint256 = self.clock // TERMS.window
    if window == self.held_window:
        return
    self.treasury += self.held_old
    self.held_old = self.held_fresh  # the clock moves one step at a time, and so do windows
    self.held_fresh = 0
    self.held_window = window


@internal
@view
def _draw(beacon: bytes32) -> DynArray[address, MAX_JUDGES]:
    order: DynArray[address, MAX_JUDGES] = []
    for judge: address in self.judges:
        if self.standing[judge] > 0 and self.clock >= self.since[judge]:
            order.append(judge)
    assert len(order) >= TERMS.quorum, "few-judges"
    jury: DynArray[address, MAX_JUDGES] = []
    for i: uint256 in range(min(TERMS.drawn, len(order)), bound=MAX_JUDGES):
        draw: uint256 = convert(keccak256(abi_encode(beacon, i)), uint256)
        chosen: uint256 = i + draw % (len(order) - i)
        swap: address = order[chosen]
        order[chosen] = order[i]
        order[i] = swap
        jury.append(swap)
    return jury


@internal
@view
def _must_be_drawn(batch: uint256):
    assert batch < self.batch_count, "unknown"
    assert msg.sender in self.juries[batch], "not-drawn"


@external
def commit(batch: uint256, sealed: bytes32):
    self._must_be_drawn(batch)
    assert self.votes[batch][msg.sender].sealed == empty(bytes32), "taken"
    assert len(self.juries[batch]) > 1 and sealed != empty(bytes32), "pointless"
    patient: bool = self.clock < self.batches[batch].entered + TERMS.patience
    assert self.batches[batch].reveals == 0 and patient, "late"
    self.votes[batch][msg.sender].sealed = sealed
    self.batches[batch].commits += 1
    self._enter(COMMIT, batch, convert(sealed, uint256), 0, 0)


@external
def reveal(
    batch: uint256, count: uint256, accepted: uint256, rejected: uint256, evidence: DynArray[bytes32, 256], salt: bytes32
):
    self._must_be_drawn(batch)
    assert not self.batches[batch].settled, "late"
    assert not self.votes[batch][msg.sender].revealed, "taken"
    assert count == self.batches[batch].count and accepted & rejected == 0, "mismatch"
    if count < 256:
        assert (accepted | rejected) >> count == 0, "mismatch"
    assert len(evidence) == self._bits(rejected), "mismatch"
    if len(self.juries[batch]) > 1:
        proof: bytes32 = empty(bytes32)
        for one: bytes32 in evidence:
            proof = keccak256(concat(proof, one))
        sealed: bytes32 = keccak256(abi_encode(RUN, batch, msg.sender, accepted, rejected, proof, salt))
        assert self.votes[batch][msg.sender].sealed == sealed, "mismatch"
        impatient: bool = self.clock >= self.batches[batch].entered + TERMS.patience
        assert self.batches[batch].commits == len(self.juries[batch]) or impatient, "early"
    self.votes[batch][msg.sender].revealed = True
    self.votes[batch][msg.sender].accepted = accepted
    self.votes[batch][msg.sender].rejected = rejected
    self.batches[batch].reveals += 1
    log Entered(
        author=msg.sender,
        kind=REVEAL,
        key=batch,
        one=accepted,
        two=rejected,
        three=convert(salt, uint256),
        evidence=evidence,
    )


@internal
@pure
def _bits(mask: uint256) -> uint256:
    left: uint256 = mask
    count: uint256 = 0
    for _: uint256 in range(256):
        if left == 0:
            break
        left &= left - 1
        count += 1
    return count


@external
def settle(batch: uint256, leaves: DynArray[Leaf, MAX_LEAVES], good: uint256, bad: uint256, opened: bool, salt: bytes32):
    """
    @param opened Whether the plants are: those that are good, and those that are bad
    """
    assert batch < self.batch_count, "unknown"
    assert not self.batches[batch].settled, "taken"
    assert self.batches[batch].count > 0, "pointless"
    overdue: bool = self.clock >= self.batches[batch].entered + 2 * TERMS.patience
    assert self.batches[batch].reveals == len(self.juries[batch]) or overdue, "early"
    if opened:
        sealed: bytes32 = keccak256(abi_encode(RUN, batch, good, bad, salt))
        assert self.batches[batch].plants == sealed, "mismatch"
    else:
        assert good | bad == 0, "mismatch"
        if self.batches[batch].plants != empty(bytes32):
            assert overdue and msg.sender != COORDINATOR, "mismatch"
    assert len(leaves) == self.batches[batch].count, "mismatch"
    assert self._root(batch, leaves) == self.batches[batch].root, "mismatch"
    self.batches[batch].settled = True
    self.batches[batch].window = self.clock // TERMS.window
    self.ended = self.clock // TERMS.window
    self.unsettled -= 1
    accepted: uint256 = self._decided(batch, True)
    rejected: uint256 = self._decided(batch, False)
    excluded: uint256 = good | bad
    step: uint256 = self.batches[batch].step
    guilty: DynArray[uint256, MAX_LEAVES] = []
    for i: uint256 in range(len(leaves), bound=MAX_LEAVES):
        bit: uint256 = 1 << i
        if excluded & bit != 0:
            continue
        word: uint256 = leaves[i].submission // 256
        place: uint256 = 1 << (leaves[i].submission % 256)
        known: uint256 = self.seen[step][word]
        if known & place != 0:
            excluded |= bit
            continue
        self.seen[step][word] = known | place
        if accepted & bit != 0:
            self._accept(leaves[i].node, leaves[i].tokens)
        elif rejected & bit != 0:
            guilty.append(i)
    for i: uint256 in guilty:
        if self.accounts[leaves[i].node].registered:
            self._punish(batch, i, leaves[i].node, leaves[i].tokens)
    accepted &= ~excluded
    rejected &= ~excluded
    self.batches[batch].accepted = accepted
    self.batches[batch].rejected = rejected
    self.batches[batch].excluded = excluded
    self._judge_judges(batch, good, bad, accepted | good, rejected | bad)
    self._enter(SETTLE, batch | convert(opened, uint256) << 32, good, bad, convert(salt, uint256))


@internal
@view
def _root(batch: uint256, leaves: DynArray[Leaf, MAX_LEAVES]) -> bytes32:
    level: DynArray[bytes32, MAX_LEAVES] = []
    step: uint256 = self.batches[batch].step
    for leaf: Leaf in leaves:
        level.append(keccak256(abi_encode(step, leaf)))
    count: uint256 = len(leaves)
    for _: uint256 in range(8):
        if count <= 1:
            break
        for i: uint256 in range(count // 2, bound=128):
            level[i] = keccak256(concat(level[2 * i], level[2 * i + 1]))
        if count % 2 == 1:
            level[count // 2] = level[count - 1]
        count = (count + 1) // 2
    return level[0]


@internal
@view
def _decided(batch: uint256, accept: bool) -> uint256:
    """
    @notice The submissions that a quorum accepts, or rejects: bit by bit, at_least[n] are those with n votes or more.
    """
    at_least: uint256[33] = empty(uint256[33])
    at_least[0] = max_value(uint256)
    for judge: address in self.juries[batch]:
        votes: uint256 = self.votes[batch][judge].rejected
        if accept:
            votes = self.votes[batch][judge].accepted
        for n: uint256 in range(TERMS.quorum, bound=MAX_JUDGES):
            above: uint256 = TERMS.quorum - n
            at_least[above] |= at_least[above - 1] & votes
    return at_least[TERMS.quorum]


@internal
def _judge_judges(batch: uint256, good: uint256, bad: uint256, all_good: uint256, all_bad: uint256):
    for judge: address in self.juries[batch]:
        if not self.votes[batch][judge].revealed:
            self._blame(judge, MISSED)
            continue
        accepted: uint256 = self.votes[batch][judge].accepted
        rejected: uint256 = self.votes[batch][judge].rejected
        wrong: uint256 = self._bits((good & ~accepted) | (bad & ~rejected))
        if wrong > 0:
            self._blame(judge, wrong * MISJUDGED)
            self._void(judge)
            continue
        standing: uint256 = self.standing[judge]
        if standing > 0 and standing < FULL_STANDING:
            self.standing[judge] = standing + 1
        self._pay(judge, TERMS.judge_pay * self._bits((all_good & accepted) | (all_bad & rejected)))


@internal
def _blame(judge: address, points: uint256):
    self.standing[judge] -= min(points, self.standing[judge])


# Challenges

@internal
@view
def _must_be_open(batch: uint256, index: uint256):
    assert batch < self.batch_count, "unknown"
    assert self.batches[batch].settled and index < self.batches[batch].count, "early"
    assert self.clock // TERMS.window < self.batches[batch].window + 2, "late"
    bit: uint256 = 1 << index
    assert self.batches[batch].excluded & bit == 0, "pointless"
    assert self.batches[batch].ruled & bit == 0, "taken"


@external
def challenge(batch: uint256, index: uint256, accept: bool, evidence: bytes32):
    self._must_be_open(batch, index)
    assert self.accounts[msg.sender].registered, "unknown"
    assert self.challenges[batch][index][msg.sender] == 0, "taken"
    bit: uint256 = 1 << index
    same: uint256 = self.batches[batch].rejected
    if accept:
        same = self.batches[batch].accepted
    contested: bool = same & bit == 0
    for judge: address in self.juries[batch]:
        if self._contradicts(batch, judge, bit, accept):
            contested = True
    assert contested, "pointless"
    kind: uint256 = ACCEPT if accept else REJECT
    taken: Taken = self.taken[batch][index]
    if taken.node == msg.sender and taken.stake + taken.gift >= TERMS.bond:
        pass  # it has paid already with what its reject took
    elif self.accounts[msg.sender].gift >= TERMS.bond:
        self.accounts[msg.sender].gift -= TERMS.bond
        kind |= BY_GIFT
    else:
        assert self.accounts[msg.sender].stake >= TERMS.bond, "short"
        self._let_leave(msg.sender, TERMS.bond)
        kind |= BY_STAKE
    self.challenges[batch][index][msg.sender] = kind
    self._enter(CHALLENGE, batch << 8 | index, convert(accept, uint256), convert(evidence, uint256), 0)


@internal
@view
def _contradicts(batch: uint256, judge: address, bit: uint256, accept: bool) -> bool:
    if accept:
        return self.votes[batch][judge].rejected & bit != 0
    return self.votes[batch][judge].accepted & bit != 0


@external
def rule(
    batch: uint256,
    index: uint256,
    challenger: address,
    upheld: bool,
    excused: bool,
    leaf: Leaf,
    proof: DynArray[bytes32, 8],
):
    assert msg.sender == TERMS.arbiter, "not-allowed"
    self._must_be_open(batch, index)
    claim: uint256 = self.challenges[batch][index][challenger]
    assert claim != 0, "unknown"
    assert claim & REFUTED_CHALLENGE == 0, "taken"
    assert self._holds(batch, index, leaf, proof), "mismatch"
    key: uint256 = (batch << 8 | index) << 160 | convert(challenger, uint256)
    self._enter(RULE, key, convert(upheld, uint256), convert(excused, uint256), 0)
    # Of stake, what was put up is leaving meanwhile.
    bond: uint256 = 0
    if claim & BY_STAKE != 0:
        bond = min(TERMS.bond, self.accounts[challenger].leaving)
        self.accounts[challenger].leaving -= bond
    if not upheld:
        self._hold(bond)
        self.challenges[batch][index][challenger] = claim | REFUTED_CHALLENGE
        return
    self.accounts[challenger].stake += bond
    if claim & BY_GIFT != 0:
        self.accounts[challenger].gift += TERMS.bond
    bit: uint256 = 1 << index
    accept: bool = claim & ACCEPT != 0
    self.batches[batch].ruled |= bit
    # A false accusation costs a validator, unless it was right by what the run went by then; an accept does not, for it
    # comes after a look at some of the answers.
    for judge: address in self.juries[batch]:
        if accept and not excused and self._contradicts(batch, judge, bit, True):
            self._blame(judge, REFUTED)
            self._void(judge)
    was_accepted: bool = self.batches[batch].accepted & bit != 0
    was_rejected: bool = self.batches[batch].rejected & bit != 0
    if accept and not was_accepted:
        if was_rejected:
            self._give_back(batch, index, leaf.node)
            self.batches[batch].rejected ^= bit
        self.batches[batch].accepted |= bit
        self._accept(leaf.node, leaf.tokens)
    elif not accept and not was_rejected:
        if was_accepted:
            self.accounts[leaf.node].accepted -= 1
            self.batches[batch].accepted ^= bit
        self.batches[batch].rejected |= bit
        if self.accounts[leaf.node].registered:
            self._punish(batch, index, leaf.node, leaf.tokens)


@internal
def _give_back(batch: uint256, index: uint256, node: address):
    taken: Taken = self.taken[batch][index]
    if taken.node == empty(address):
        return
    from_old: uint256 = min(self.held_old, taken.stake + taken.voided)
    self.held_old -= from_old
    self.held_fresh -= taken.stake + taken.voided - from_old
    self.forfeited -= taken.stake + taken.voided
    self._turn(node)
    self.accounts[node].stake += taken.stake
    self.accounts[node].gift += taken.gift
    self.accounts[node].fresh += taken.voided
    self.accounts[node].offences -= 1
    self.accounts[node].suspended_until = 0
    self.taken[batch][index] = empty(Taken)


@internal
@view
def _holds(batch: uint256, index: uint256, leaf: Leaf, proof: DynArray[bytes32, 8]) -> bool:
    above: bytes32 = keccak256(abi_encode(self.batches[batch].step, leaf))
    count: uint256 = self.batches[batch].count
    place: uint256 = index
    used: uint256 = 0
    for _: uint256 in range(8):
        if count <= 1:
            break
        if place ^ 1 < count:
            if used >= len(proof):
                return False
            if place % 2 == 1:
                above = keccak256(concat(proof[used], above))
            else:
                above = keccak256(concat(above, proof[used]))
            used += 1
        count = (count + 1) // 2
        place //= 2
    return above == self.batches[batch].root and used == len(proof)


# For reading

@external
@view
def node(who: address) -> Standing:
    account: Account = self.accounts[who]
    passed: uint256 = self.clock // TERMS.window - account.window
    let_go: uint256 = 0
    if passed > 0:
        let_go = account.old
    if passed > 1:
        let_go += account.fresh
    status: uint256 = 0
    leases: uint256 = min(TERMS.leases, 1 + account.stake // TERMS.stake_per_lease)
    if account.offences >= TERMS.ban_after:
        status = 2
    elif self.clock < account.suspended_until:
        status = 1
    if status != 0:
        leases = 0
    return Standing(
        registered=account.registered,
        stake=account.stake,
        gift=account.gift,
        leaving=account.leaving,
        locked=account.fresh + account.old - let_go,
        earned=account.earned + let_go,
        accepted=account.accepted,
        offences=account.offences,
        leases=leases,
        status=status,
    )


@external
@view
def judge(who: address) -> (bool, uint256):
    return self.is_judge[who], self.standing[who]


@external
@view
def jury(batch: uint256) -> DynArray[address, MAX_JUDGES]:
    return self.juries[batch]


@external
@view
def outcomes(batch: uint256) -> (bool, uint256, uint256, uint256, uint256):
    b: Batch = self.batches[batch]
    return b.settled, b.count, b.accepted, b.rejected, b.excluded


@external
@view
def totals() -> Totals:
    return Totals(
        clock=self.clock,
        batches=self.batch_count,
        treasury=self.treasury,
        held=self.held_fresh + self.held_old,
        brought_in=self.brought_in,
        paid_out=self.paid_out,
        unsettled=self.unsettled,
        closed=self.closed,
        finished=self._finished(),
    )
