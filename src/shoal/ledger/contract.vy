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
    stake_per_lease: uint256
    leases: uint256
    probation: uint256
    probation_leases: uint256
    trusted_leases: uint256
    slash: uint256
    suspend_steps: uint256
    ban_after: uint256
    window: uint256
    patience: uint256
    bond: uint256
    beacon: bytes32

struct Leaf:
    submission: uint256
    node: address
    sha256: bytes32
    tokens: uint256

struct Account:
    registered: bool
    stake: uint256
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
    stake: uint256
    voided: uint256

struct Standing:
    registered: bool
    stake: uint256
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

# Everything that the rules need of an act, so that anybody adds up the same state from the logs alone, whoever sent the
# transaction; but for the submissions of a batch, which stand in the coordinator's own, after what `work` is called with.
event Entered:
    author: indexed(address)
    kind: indexed(uint256)
    key: indexed(uint256)
    one: uint256
    two: uint256
    three: uint256
    evidence: DynArray[bytes32, MOST_LEAVES]

MOST_LEAVES: constant(uint256) = 256
MOST_JUDGES: constant(uint256) = 32
FULL_STANDING: constant(uint256) = 100
REFUTED: constant(uint256) = 34
MISJUDGED: constant(uint256) = 34
MISSED: constant(uint256) = 10

# Numbers of the kinds of acts, as in shoal/ledger/evm.py
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

COORDINATOR: public(immutable(address))
RUN: public(immutable(bytes32))
TERMS: public(immutable(Terms))
BEGAN: public(immutable(uint256))  # the block from which on there are entries

clock: uint256
beacon: bytes32
treasury: uint256
held_fresh: uint256
held_old: uint256
held_window: uint256
brought_in: uint256
paid_out: uint256
accounts: HashMap[address, Account]
judges: DynArray[address, MOST_JUDGES]
is_judge: HashMap[address, bool]
standing: HashMap[address, uint256]
batch_count: uint256
batches: HashMap[uint256, Batch]
juries: HashMap[uint256, DynArray[address, MOST_JUDGES]]
votes: HashMap[uint256, HashMap[address, Vote]]
taken: HashMap[uint256, HashMap[uint256, Taken]]
challenges: HashMap[uint256, HashMap[uint256, HashMap[address, uint256]]]  # 1 claims accept, 2 reject, 3 is refuted
seen: HashMap[uint256, HashMap[uint256, uint256]]
done: HashMap[bytes32, bool]


@deploy
def __init__(run: bytes32, terms: Terms, validators: DynArray[address, MOST_JUDGES]):
    assert terms.quorum > 0 and terms.quorum <= terms.drawn and terms.drawn < 2 * terms.quorum, "mismatch"
    assert terms.window > 0 and terms.patience > 0 and terms.stake_per_lease > 0, "mismatch"
    COORDINATOR = msg.sender
    RUN = run
    TERMS = terms
    BEGAN = block.number
    self.beacon = terms.beacon
    for validator: address in validators:
        assert not self.is_judge[validator], "mismatch"
        self._admit(validator)


@internal
def _admit(validator: address):
    self.is_judge[validator] = True
    self.standing[validator] = FULL_STANDING
    self.judges.append(validator)
    self.accounts[validator].registered = True
    self._enter(REGISTER, convert(validator, uint256) | 1 << 160, 0, 0, 0)


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
def register(node: address, validator: bool):
    assert msg.sender == COORDINATOR or (msg.sender == node and not validator), "not-allowed"
    if validator:
        assert not self.is_judge[node], "taken"
        self._admit(node)
    else:
        assert not self.accounts[node].registered, "taken"
        self.accounts[node].registered = True
        self._enter(REGISTER, convert(node, uint256), 0, 0, 0)


@external
@payable
def fund(name: bytes32):
    self._once(FUND, name, msg.value, 0)
    self.treasury += msg.value
    self.brought_in += msg.value


@external
@payable
def deposit(name: bytes32, node: address):
    assert self.accounts[node].registered, "unknown"
    self._once(DEPOSIT, name, msg.value, convert(node, uint256))
    self.accounts[node].stake += msg.value
    self.brought_in += msg.value


@external
def unbond(name: bytes32, amount: uint256):
    assert self.accounts[msg.sender].registered, "unknown"
    assert amount > 0 and self.accounts[msg.sender].stake >= amount, "short"
    self._once(UNBOND, name, amount, 0)
    self.accounts[msg.sender].stake -= amount
    self.accounts[msg.sender].leaving += amount
    self.accounts[msg.sender].leaves_at = self.clock + 2 * TERMS.patience + 2 * TERMS.window


@external
@nonreentrant
def withdraw(name: bytes32):
    assert self.accounts[msg.sender].registered, "unknown"
    self._once(WITHDRAW, name, 0, 0)
    self._turn(msg.sender)
    amount: uint256 = self.accounts[msg.sender].earned
    self.accounts[msg.sender].earned = 0
    if self.clock >= self.accounts[msg.sender].leaves_at:
        amount += self.accounts[msg.sender].leaving
        self.accounts[msg.sender].leaving = 0
    assert amount > 0, "short"
    self.paid_out += amount
    raw_call(msg.sender, b"", value=amount)


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
def _accept(node: address, tokens: uint256):
    self._turn(node)
    self.accounts[node].accepted += 1
    if self.accounts[node].offences < TERMS.ban_after:
        amount: uint256 = min(TERMS.rate * tokens, self.treasury)
        self.treasury -= amount
        self.accounts[node].fresh += amount


@internal
def _punish(batch: uint256, index: uint256, node: address):
    self._turn(node)
    stake: uint256 = self.accounts[node].stake
    slashed: uint256 = min(TERMS.slash, stake + self.accounts[node].leaving)
    from_stake: uint256 = min(slashed, stake)
    voided: uint256 = self.accounts[node].fresh + self.accounts[node].old
    self.accounts[node].stake = stake - from_stake
    self.accounts[node].leaving -= slashed - from_stake
    self.accounts[node].fresh = 0
    self.accounts[node].old = 0
    self.accounts[node].offences += 1
    self.accounts[node].suspended_until = self.clock + TERMS.suspend_steps
    self.held_fresh += slashed + voided
    self.taken[batch][index] = Taken(stake=slashed, voided=voided)


# Work and its judgement

@external
def work(batch: uint256, step: uint256, root: bytes32, count: uint256, beacon: bytes32, plants: bytes32):
    assert msg.sender == COORDINATOR, "not-allowed"
    assert batch == self.batch_count and step <= self.clock + 1 and count <= MOST_LEAVES, "order"
    assert keccak256(beacon) == self.beacon, "beacon"
    if count > 0:
        self.juries[batch] = self._draw(beacon)
    self.beacon = beacon
    self.batch_count = batch + 1
    if step > self.clock:
        self.clock = step
        self._turn_held()
    self.batches[batch].root = root
    self.batches[batch].step = step
    self.batches[batch].entered = self.clock
    self.batches[batch].count = count
    self.batches[batch].plants = plants
    self._enter(WORK, batch, step, convert(beacon, uint256), convert(plants, uint256))


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
def _draw(beacon: bytes32) -> DynArray[address, MOST_JUDGES]:
    order: DynArray[address, MOST_JUDGES] = []
    for judge: address in self.judges:
        if self.standing[judge] > 0:
            order.append(judge)
    assert len(order) >= TERMS.quorum, "few-judges"
    jury: DynArray[address, MOST_JUDGES] = []
    for i: uint256 in range(min(TERMS.drawn, len(order)), bound=MOST_JUDGES):
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
def settle(batch: uint256, leaves: DynArray[Leaf, MOST_LEAVES], good: uint256, bad: uint256, opened: bool, salt: bytes32):
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
    accepted: uint256 = self._decided(batch, True)
    rejected: uint256 = self._decided(batch, False)
    excluded: uint256 = good | bad
    step: uint256 = self.batches[batch].step
    guilty: DynArray[uint256, MOST_LEAVES] = []
    for i: uint256 in range(len(leaves), bound=MOST_LEAVES):
        bit: uint256 = 1 << i
        if excluded & bit != 0:
            continue
        word: uint256 = leaves[i].submission // 256
        place: uint256 = 1 << (leaves[i].submission % 256)
        known: uint256 = self.seen[step][word]
        if known & place != 0 or not self.accounts[leaves[i].node].registered:
            excluded |= bit
            continue
        self.seen[step][word] = known | place
        if accepted & bit != 0:
            self._accept(leaves[i].node, leaves[i].tokens)
        elif rejected & bit != 0:
            guilty.append(i)
    for i: uint256 in guilty:
        self._punish(batch, i, leaves[i].node)
    self.batches[batch].accepted = accepted & ~excluded
    self.batches[batch].rejected = rejected & ~excluded
    self.batches[batch].excluded = excluded
    self._judge_judges(batch, good, bad)
    self._enter(SETTLE, batch | convert(opened, uint256) << 32, good, bad, convert(salt, uint256))


@internal
@view
def _root(batch: uint256, leaves: DynArray[Leaf, MOST_LEAVES]) -> bytes32:
    level: DynArray[bytes32, MOST_LEAVES] = []
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
        for n: uint256 in range(TERMS.quorum, bound=MOST_JUDGES):
            above: uint256 = TERMS.quorum - n
            at_least[above] |= at_least[above - 1] & votes
    return at_least[TERMS.quorum]


@internal
def _judge_judges(batch: uint256, good: uint256, bad: uint256):
    for judge: address in self.juries[batch]:
        if not self.votes[batch][judge].revealed:
            self._blame(judge, MISSED)
            continue
        accepted: uint256 = self.votes[batch][judge].accepted
        rejected: uint256 = self.votes[batch][judge].rejected
        wrong: uint256 = self._bits((good & ~accepted) | (bad & ~rejected))
        standing: uint256 = self.standing[judge]
        if wrong > 0:
            self._blame(judge, wrong * MISJUDGED)
        elif standing > 0 and standing < FULL_STANDING:
            self.standing[judge] = standing + 1


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
    self.challenges[batch][index][msg.sender] = 1 if accept else 2
    self._enter(CHALLENGE, batch << 8 | index, convert(accept, uint256), convert(evidence, uint256), 0)


@internal
@view
def _contradicts(batch: uint256, judge: address, bit: uint256, accept: bool) -> bool:
    if accept:
        return self.votes[batch][judge].rejected & bit != 0
    return self.votes[batch][judge].accepted & bit != 0


@external
def rule(
    batch: uint256, index: uint256, challenger: address, upheld: bool, leaf: Leaf, proof: DynArray[bytes32, 8]
):
    assert msg.sender == TERMS.arbiter, "not-allowed"
    self._must_be_open(batch, index)
    claim: uint256 = self.challenges[batch][index][challenger]
    assert claim != 0, "unknown"
    assert claim != 3, "taken"
    assert self._holds(batch, index, leaf, proof), "mismatch"
    self._enter(RULE, (batch << 8 | index) << 160 | convert(challenger, uint256), convert(upheld, uint256), 0, 0)
    if not upheld:
        bond: uint256 = min(TERMS.bond, self.accounts[challenger].stake)
        self.accounts[challenger].stake -= bond
        self.held_fresh += bond
        self.challenges[batch][index][challenger] = 3
        return
    bit: uint256 = 1 << index
    accept: bool = claim == 1
    self.batches[batch].ruled |= bit
    for judge: address in self.juries[batch]:
        if self._contradicts(batch, judge, bit, accept):
            self._blame(judge, REFUTED)
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
        self._punish(batch, index, leaf.node)


@internal
def _give_back(batch: uint256, index: uint256, node: address):
    taken: Taken = self.taken[batch][index]
    from_old: uint256 = min(self.held_old, taken.stake + taken.voided)
    self.held_old -= from_old
    self.held_fresh -= taken.stake + taken.voided - from_old
    self._turn(node)
    self.accounts[node].stake += taken.stake
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
    leases: uint256 = TERMS.probation_leases
    if account.accepted >= TERMS.probation:
        leases = TERMS.trusted_leases
    leases = min(TERMS.leases, max(leases, account.stake // TERMS.stake_per_lease))
    if account.offences >= TERMS.ban_after:
        status = 2
    elif self.clock < account.suspended_until:
        status = 1
    if status != 0:
        leases = 0
    return Standing(
        registered=account.registered,
        stake=account.stake,
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
def jury(batch: uint256) -> DynArray[address, MOST_JUDGES]:
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
    )
