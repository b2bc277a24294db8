"""What every ledger does, whatever it is kept in."""

import pytest

from shoal.ledger.acts import (
    Challenge,
    Close,
    Commit,
    Deposit,
    Fund,
    Refund,
    Register,
    Rule,
    Settle,
    Stake,
    Unbond,
    Withdraw,
    Work,
    vote_hash,
)
from shoal.ledger.interface import Ledger
from tests.support.ledgers import (
    ARBITER,
    COORDINATOR,
    EVIDENCE,
    KEYS,
    LINKS,
    NODES,
    RUN,
    SALT,
    STRANGER,
    VALIDATORS,
    Court,
    leaf,
    refusal,
    reveal,
)


@pytest.fixture
def court(ledger: Ledger) -> Court:
    court = Court(ledger)
    court.begin()
    return court


NODE = NODES[0].address


def test_entering_twice_is_entering_once(ledger: Ledger) -> None:
    act = Register(node=NODE)
    assert ledger.enter(COORDINATOR, act)
    assert not ledger.enter(COORDINATOR, act)
    fund = Fund(id="x", amount=5)
    assert ledger.enter(COORDINATOR, fund)
    assert not ledger.enter(COORDINATOR, fund)
    assert ledger.totals().treasury == 5


def test_another_act_under_a_taken_name_is_refused(court: Court) -> None:
    assert refusal(court.ledger, COORDINATOR, Fund(id="budget", amount=7)) == "taken"
    court.work(leaf(0))
    other = Work(batch=0, step=0, leaves=(leaf(1),), beacon=LINKS[1])
    assert refusal(court.ledger, COORDINATOR, other) == "taken"


def test_only_the_coordinator_admits_validators_and_no_more_than_it_began_with(ledger: Ledger) -> None:
    assert refusal(ledger, STRANGER, Register(node=STRANGER.address)) == "not-allowed"
    assert ledger.enter(COORDINATOR, Register(node=STRANGER.address))
    assert ledger.judge(STRANGER.address) == 100
    for node in NODES[:2]:
        assert ledger.enter(COORDINATOR, Register(node=node.address))
    assert refusal(ledger, COORDINATOR, Register(node=NODES[2].address)) == "full"


def test_leases_above_one_need_stake_that_was_paid_in_whatever_the_record(court: Court) -> None:
    assert court.node(NODE).leases == 4  # 1 + 1000 // 100, and never more than 4
    court.judged([leaf(0, NODES[1], tokens=40), leaf(1, NODES[1], tokens=40)], "aa")
    proved = court.node(NODES[1].address)
    assert (proved.accepted, proved.gift, proved.leases) == (2, 80, 1)
    assert refusal(court.ledger, NODES[1], Stake(id="locked", amount=160)) == "short"
    court.pass_steps(4)
    assert court.ledger.enter(NODES[1], Stake(id="earned", amount=160))
    staked = court.node(NODES[1].address)
    assert (staked.stake, staked.earned, staked.leases) == (210, 0, 3)


def test_a_node_is_welcomed_once_with_credits_that_never_leave(court: Court) -> None:
    assert court.node(NODE).gift == 0
    before = court.ledger.totals()
    court.judged([leaf(0, STRANGER), leaf(1, STRANGER)], "aa")
    assert court.node(STRANGER.address).gift == 80
    assert before.treasury - court.ledger.totals().treasury == 40  # for the tokens: a gift is not money
    assert refusal(court.ledger, STRANGER, Unbond(id="gift", amount=1)) == "short"
    assert refusal(court.ledger, STRANGER, Stake(id="gift", amount=41)) == "short"
    court.pass_steps(4)
    assert court.ledger.enter(STRANGER, Withdraw(id="all"))
    assert court.ledger.totals().paid_out == 40
    court.judged([leaf(2, STRANGER)], "r")
    assert court.node(STRANGER.address).gift == 0


def test_a_rejected_file_of_somebody_unknown_is_recorded_and_opens_no_account(court: Court) -> None:
    batch = court.judged([leaf(0, STRANGER), leaf(1)], "ra")
    assert court.ledger.outcomes(batch) == "ra"
    assert court.ledger.node(STRANGER.address) is None
    court.judged([leaf(2, STRANGER)], "a")  # an account since then; the reject before it took nothing
    court.ledger.enter(NODES[0], Challenge(batch=batch, index=0, claim="a", evidence=EVIDENCE))
    court.ledger.enter(ARBITER, Rule(batch=batch, index=0, challenger=NODE, upheld=True))
    node = court.node(STRANGER.address)
    assert (node.accepted, node.locked, node.offences, node.gift) == (2, 40, 0, 80)


def test_a_reject_takes_a_multiple_of_the_files_own_pay_of_paid_in_stake(court: Court) -> None:
    court.judged([leaf(0, tokens=200)], "r")
    assert court.node(NODE).stake == 1000 - 2 * 2 * 200
    court.judged([leaf(1, tokens=10)], "r")
    assert court.node(NODE).stake == 0  # at least 300, or what there is


def test_accepted_tokens_earn_and_what_is_earned_unlocks_after_the_window(court: Court) -> None:
    court.judged([leaf(0, tokens=30), leaf(1, NODES[1], tokens=7)], "aa")
    node = court.node(NODE)
    assert (node.locked, node.earned, node.accepted) == (60, 0, 1)
    assert refusal(court.ledger, NODES[0], Withdraw(id="1")) == "short"
    court.pass_steps(3)  # window 1: still to be challenged
    node = court.node(NODE)
    assert (node.locked, node.earned) == (60, 0)
    court.pass_steps(1)
    node = court.node(NODE)
    assert (node.locked, node.earned) == (0, 60)
    assert court.ledger.enter(NODES[0], Withdraw(id="1"))
    assert court.ledger.totals().paid_out == 60
    node = court.node(NODE)
    assert node.earned == 0


def test_no_more_is_earned_than_the_treasury_has(ledger: Ledger) -> None:
    court = Court(ledger)
    court.begin(treasury=25)
    court.judged([leaf(0), leaf(1), leaf(2)], "aaa")
    node = court.node(NODE)
    assert node.locked == 25
    assert ledger.totals().treasury == 0


def test_a_reject_slashes_to_the_treasury_voids_what_is_locked_suspends_then_bans(court: Court) -> None:
    court.judged([leaf(0), leaf(1)], "aa")
    treasury = court.ledger.totals().treasury
    court.judged([leaf(2), leaf(3)], "ar")
    node = court.node(NODE)
    assert (node.stake, node.locked, node.offences, node.status, node.leases) == (700, 0, 1, "suspended", 0)
    assert court.ledger.totals().held == 300 + 60
    court.pass_steps(2)
    node = court.node(NODE)
    assert (node.status, node.leases) == ("active", 4)
    court.pass_steps(2)
    totals = court.ledger.totals()
    assert (totals.held, totals.treasury) == (0, treasury + 300 + 40)
    court.judged([leaf(4)], "r")
    node = court.node(NODE)
    assert (node.stake, node.status, node.leases) == (400, "banned", 0)
    court.judged([leaf(5)], "a")  # handed in before; it earns nothing any more
    node = court.node(NODE)
    assert (node.locked, node.status) == (0, "banned")


def test_an_honest_failure_costs_the_work_and_nothing_else(court: Court) -> None:
    court.judged([leaf(0)], "a")
    before = court.node(NODE)
    batch = court.judged([leaf(1)], "v")
    assert court.ledger.outcomes(batch) == "v"
    assert court.node(NODE) == before


def test_no_quorum_costs_nobody_anything(court: Court) -> None:
    batch = court.work(leaf(0))
    jury = court.ledger.jury(batch)
    court.vote(batch, dict(zip(jury, "arv", strict=True)))
    court.ledger.enter(COORDINATOR, Settle(batch=batch))
    assert court.ledger.outcomes(batch) == "v"


def test_a_submission_is_paid_for_once(court: Court) -> None:
    court.judged([leaf(0)], "a")
    batch = court.judged([leaf(0), leaf(1), leaf(1)], "aaa")
    assert court.ledger.outcomes(batch) == "xax"
    node = court.node(NODE)
    assert node.locked == 40


def test_only_the_coordinator_enters_work_in_order_with_its_beacon(court: Court) -> None:
    def act(batch: int = 0, step: int = 0, beacon: str = LINKS[1]) -> Work:
        return Work(batch=batch, step=step, leaves=(leaf(0),), beacon=beacon)

    assert refusal(court.ledger, NODES[0], act()) == "not-allowed"
    assert refusal(court.ledger, COORDINATOR, act(batch=1)) == "order"
    assert refusal(court.ledger, COORDINATOR, act(step=2)) == "order"
    assert refusal(court.ledger, COORDINATOR, act(beacon=LINKS[2])) == "beacon"
    assert refusal(court.ledger, COORDINATOR, act()) == ""


def test_a_deposit_opens_an_account_and_nothing_does_not(court: Court) -> None:
    assert refusal(court.ledger, COORDINATOR, Deposit(id="x", node=STRANGER.address, amount=0)) == "short"
    assert court.ledger.enter(COORDINATOR, Deposit(id="y", node=STRANGER.address, amount=5))
    assert court.node(STRANGER.address).stake == 5


@pytest.mark.parametrize("terms", [{"drawn": 1, "quorum": 1}])
def test_more_batches_of_a_step_draw_nobody_else(court: Court) -> None:
    """So there is nothing to gain by entering batches until the draw suits."""
    for step in range(5):
        juries = {court.ledger.jury(court.work(leaf(n), step=step)) for n in range(3)}
        assert len(juries) == 1
        empty = Work(batch=court.batch, step=step, leaves=(), beacon=LINKS[step + 1])
        assert refusal(court.ledger, COORDINATOR, empty) == "pointless"


def test_votes_are_revealed_only_after_all_have_committed(court: Court) -> None:
    batch = court.work(leaf(0))
    first, second, third = VALIDATORS
    for key in (first, second):
        hash_ = vote_hash(RUN, key.address, reveal(batch, "a"))
        court.ledger.enter(key, Commit(batch=batch, hash=hash_))
    assert refusal(court.ledger, first, reveal(batch, "a")) == "early"
    assert refusal(court.ledger, COORDINATOR, Settle(batch=batch)) == "early"
    court.pass_steps(1)  # the third did not come in time
    assert refusal(court.ledger, third, Commit(batch=batch, hash="01" * 32)) == "late"
    assert refusal(court.ledger, first, reveal(batch, "v")) == "mismatch"
    for key in (first, second):
        court.ledger.enter(key, reveal(batch, "a"))
    assert refusal(court.ledger, COORDINATOR, Settle(batch=batch)) == "early"
    court.pass_steps(1)
    assert court.ledger.enter(COORDINATOR, Settle(batch=batch))
    assert court.ledger.outcomes(batch) == "a"
    assert court.ledger.judge(third.address) == 90


def test_only_those_who_are_drawn_vote(court: Court) -> None:
    batch = court.work(leaf(0))
    assert set(court.ledger.jury(batch)) == {key.address for key in VALIDATORS}
    assert refusal(court.ledger, STRANGER, Commit(batch=batch, hash="00" * 32)) == "not-drawn"
    assert refusal(court.ledger, COORDINATOR, reveal(batch, "a")) == "not-drawn"


def test_a_copied_commitment_cannot_be_revealed(court: Court) -> None:
    batch = court.work(leaf(0))
    honest, other, copier = VALIDATORS
    sealed = vote_hash(RUN, honest.address, reveal(batch, "a"))
    court.ledger.enter(honest, Commit(batch=batch, hash=sealed))
    court.ledger.enter(other, Commit(batch=batch, hash=vote_hash(RUN, other.address, reveal(batch, "a"))))
    court.ledger.enter(copier, Commit(batch=batch, hash=sealed))
    court.ledger.enter(honest, reveal(batch, "a"))
    assert refusal(court.ledger, copier, reveal(batch, "a")) == "mismatch"


def test_a_reject_needs_its_evidence_and_a_vote_a_submission(court: Court) -> None:
    batch = court.work(leaf(0), leaf(1))
    first = VALIDATORS[0]
    for act in (reveal(batch, "r"), reveal(batch, "ar").model_copy(update={"evidence": ()})):
        assert refusal(court.ledger, first, act) == "mismatch"


def test_a_planted_sample_finds_out_who_misjudges_and_pays_nobody(court: Court) -> None:
    batch = court.work(leaf(0), leaf(1), leaf(2), plants="a.r")
    jury = court.ledger.jury(batch)
    court.vote(batch, dict(zip(jury, ("aar", "raa", "aaa"), strict=True)))
    assert refusal(court.ledger, COORDINATOR, Settle(batch=batch)) == "mismatch"
    assert refusal(court.ledger, COORDINATOR, Settle(batch=batch, plants="r.a", salt=SALT)) == "mismatch"
    assert court.ledger.enter(COORDINATOR, Settle(batch=batch, plants="a.r", salt=SALT))
    assert court.ledger.outcomes(batch) == "xax"
    assert [court.ledger.judge(who) for who in jury] == [100, 32, 66]
    node = court.node(NODE)
    assert (node.accepted, node.locked, node.offences) == (1, 20, 0)


def test_a_validator_without_standing_is_drawn_no_more_and_too_few_are_no_jury(court: Court) -> None:
    jury = court.ledger.jury(court.work(leaf(0), leaf(1), leaf(2), plants="rrr"))
    court.vote(0, {jury[0]: "aaa", jury[1]: "rrr", jury[2]: "aaa"})
    court.ledger.enter(COORDINATOR, Settle(batch=0, plants="rrr", salt=SALT))
    assert [court.ledger.judge(who) for who in jury] == [0, 100, 0]
    act = Work(batch=1, step=0, leaves=(leaf(3),), beacon=LINKS[1])
    assert refusal(court.ledger, COORDINATOR, act) == "few-judges"
    court.ledger.enter(COORDINATOR, Register(node=STRANGER.address))
    court.pass_steps(5)
    act = Work(batch=court.batch, step=0, leaves=(leaf(3),), beacon=LINKS[1])
    assert refusal(court.ledger, COORDINATOR, act) == "few-judges"  # as long as stake takes to leave
    court.pass_steps(1)
    assert set(court.ledger.jury(court.work(leaf(3), step=0))) == {jury[1], STRANGER.address}


def test_anyone_may_challenge_a_reject_and_an_upheld_one_gives_everything_back(court: Court) -> None:
    court.judged([leaf(0)], "a")
    before = court.node(NODE)
    batch = court.work(leaf(1))
    jury = court.ledger.jury(batch)
    court.vote(batch, dict(zip(jury, "rra", strict=True)))
    court.ledger.enter(COORDINATOR, Settle(batch=batch))
    court.ledger.enter(NODES[0], Challenge(batch=batch, index=0, claim="a", evidence=EVIDENCE))
    rule = Rule(batch=batch, index=0, challenger=NODE, upheld=True)
    assert refusal(court.ledger, COORDINATOR, rule) == "not-allowed"
    assert court.ledger.enter(ARBITER, rule)
    assert court.ledger.outcomes(batch) == "a"
    node = court.node(NODE)
    assert (node.stake, node.locked, node.offences, node.status) == (before.stake, before.locked + 20, 0, "active")
    assert court.ledger.totals().held == 0
    assert [court.ledger.judge(who) for who in jury] == [66, 66, 100]
    assert refusal(court.ledger, NODES[1], Challenge(batch=batch, index=0, claim="r", evidence=EVIDENCE)) == "taken"


def test_a_ruling_may_excuse_who_accused_by_what_the_run_went_by_then(court: Court) -> None:
    batch = court.judged([leaf(0)], "r")
    court.ledger.enter(NODES[0], Challenge(batch=batch, index=0, claim="a", evidence=EVIDENCE))
    assert court.ledger.enter(ARBITER, Rule(batch=batch, index=0, challenger=NODE, upheld=True, excused=True))
    assert court.ledger.outcomes(batch) == "a"
    assert (court.node(NODE).stake, court.node(NODE).offences) == (1000, 0)
    assert [court.ledger.judge(key.address) for key in VALIDATORS] == [100, 100, 100]


def test_an_upheld_challenge_of_an_accept_slashes_and_blames_nobody_who_looked_at_a_sample(court: Court) -> None:
    batch = court.judged([leaf(0), leaf(1)], "aa")
    court.ledger.enter(NODES[1], Challenge(batch=batch, index=0, claim="r", evidence=EVIDENCE))
    court.ledger.enter(ARBITER, Rule(batch=batch, index=0, challenger=NODES[1].address, upheld=True))
    assert court.ledger.outcomes(batch) == "ra"
    node = court.node(NODE)
    assert (node.stake, node.locked, node.accepted, node.offences) == (700, 0, 1, 1)
    assert court.ledger.totals().held == 300 + 40
    assert [court.ledger.judge(key.address) for key in VALIDATORS] == [100, 100, 100]
    accuser = court.node(NODES[1].address)
    assert (accuser.stake, accuser.locked, accuser.earned) == (50, 0, 0)


def test_a_lone_false_accusation_is_refuted_though_it_decided_nothing(court: Court) -> None:
    batch = court.work(leaf(0))
    jury = court.ledger.jury(batch)
    court.vote(batch, dict(zip(jury, "aar", strict=True)))
    court.ledger.enter(COORDINATOR, Settle(batch=batch))
    court.ledger.enter(NODES[0], Challenge(batch=batch, index=0, claim="a", evidence=EVIDENCE))
    court.ledger.enter(ARBITER, Rule(batch=batch, index=0, challenger=NODE, upheld=True))
    assert court.ledger.outcomes(batch) == "a"
    assert [court.ledger.judge(who) for who in jury] == [100, 100, 66]


def test_a_refuted_challenge_costs_its_bond_and_changes_nothing_else(court: Court) -> None:
    batch = court.judged([leaf(0, NODES[1])], "r")
    victim = court.node(NODES[1].address)
    court.ledger.enter(NODES[0], Challenge(batch=batch, index=0, claim="a", evidence=EVIDENCE))
    rule = Rule(batch=batch, index=0, challenger=NODE, upheld=False)
    court.ledger.enter(ARBITER, rule)
    node = court.node(NODE)
    assert node.stake == 950
    assert court.node(NODES[1].address) == victim
    assert court.ledger.outcomes(batch) == "r"
    assert not court.ledger.enter(ARBITER, rule)


def test_challenges_end_with_the_window_and_need_a_reason(court: Court) -> None:
    batch = court.judged([leaf(0)], "a")
    same = Challenge(batch=batch, index=0, claim="a", evidence=EVIDENCE)
    other = Challenge(batch=batch, index=0, claim="r", evidence=EVIDENCE)
    assert refusal(court.ledger, NODES[1], same) == "pointless"
    assert refusal(court.ledger, STRANGER, other) == "unknown"
    assert refusal(court.ledger, ARBITER, Rule(batch=batch, index=0, challenger=NODE, upheld=True)) == "unknown"
    court.ledger.enter(NODES[1], other)
    court.pass_steps(4)
    assert refusal(court.ledger, NODES[2], other) == "late"
    late = Rule(batch=batch, index=0, challenger=NODES[1].address, upheld=True)
    assert refusal(court.ledger, ARBITER, late) == "late"


def test_stake_that_leaves_can_be_slashed_until_it_has_left(court: Court) -> None:
    batch = court.work(leaf(0))
    court.ledger.enter(NODES[0], Unbond(id="u", amount=900))
    node = court.node(NODE)
    assert (node.stake, node.leaving, node.leases) == (100, 900, 2)
    assert refusal(court.ledger, NODES[0], Unbond(id="more", amount=101)) == "short"
    court.vote(batch, "r")
    court.ledger.enter(COORDINATOR, Settle(batch=batch))
    node = court.node(NODE)
    assert (node.stake, node.leaving) == (0, 700)
    court.pass_steps(5)
    assert refusal(court.ledger, NODES[0], Withdraw(id="w")) == "short"
    court.pass_steps(1)
    assert court.ledger.enter(NODES[0], Withdraw(id="w"))
    assert court.ledger.totals().paid_out == 700


def test_anybody_may_settle_what_the_coordinator_leaves_unsettled(court: Court) -> None:
    batch = court.work(leaf(0), leaf(1), plants=".r")
    court.vote(batch, "ar")
    assert refusal(court.ledger, NODES[0], Settle(batch=batch)) == "mismatch"
    court.pass_steps(2)
    assert court.ledger.enter(NODES[0], Settle(batch=batch))
    assert court.ledger.outcomes(batch) == "ar"


def test_a_node_objects_to_its_own_reject_with_what_that_took(court: Court) -> None:
    batch = court.judged([leaf(0, NODES[1]), leaf(1, NODES[1])], "rr")
    assert court.node(NODES[1].address).stake == 0
    own = Challenge(batch=batch, index=0, claim="a", evidence=EVIDENCE)
    assert refusal(court.ledger, NODES[1], own.model_copy(update={"index": 1})) == "short"  # that one took nothing
    assert court.ledger.enter(NODES[1], own)
    court.ledger.enter(ARBITER, Rule(batch=batch, index=0, challenger=NODES[1].address, upheld=True))
    assert (court.node(NODES[1].address).stake, court.node(NODES[1].address).offences) == (50, 1)


def test_a_challenge_needs_a_bond_of_its_own(court: Court) -> None:
    batch = court.judged([leaf(0), leaf(1), leaf(2)], "aaa")
    bond = Challenge(batch=batch, index=0, claim="r", evidence=EVIDENCE)
    assert court.ledger.enter(NODES[1], bond)
    assert (court.node(NODES[1].address).stake, court.node(NODES[1].address).leaving) == (0, 50)
    assert refusal(court.ledger, NODES[1], bond.model_copy(update={"index": 1})) == "short"
    court.pass_steps(6)  # nobody ruled on it: it is not lost
    assert court.ledger.enter(NODES[1], Withdraw(id="bond"))
    assert court.ledger.totals().paid_out == 50


def test_a_bond_of_the_gift_comes_back_as_a_gift_or_not_at_all(court: Court) -> None:
    batch = court.judged([leaf(0), leaf(1, NODES[1]), leaf(2, NODES[1])], "aaa")
    for index, upheld, left in ((1, True, 80), (2, False, 30)):
        court.ledger.enter(NODES[0], Challenge(batch=batch, index=index, claim="r", evidence=EVIDENCE))
        assert (court.node(NODE).gift, court.node(NODE).stake, court.node(NODE).leaving) == (30, 1000, 0)
        court.ledger.enter(ARBITER, Rule(batch=batch, index=index, challenger=NODE, upheld=upheld))
        assert court.node(NODE).gift == left


@pytest.mark.parametrize("terms", [{"judge_pay": 7}])
def test_judging_is_paid_where_the_vote_is_as_decided_and_void_where_it_was_false(court: Court) -> None:
    batch = court.work(leaf(0), leaf(1), leaf(2), leaf(3), plants="..r.")
    jury = court.ledger.jury(batch)
    court.vote(batch, dict(zip(jury, ("aara", "avaa", "arra"), strict=True)))
    court.ledger.enter(COORDINATOR, Settle(batch=batch, plants="..r.", salt=SALT))
    assert court.ledger.outcomes(batch) == "avxa"
    # The plant and the two accepted ones; the second took the plant for good.
    assert [court.node(who).locked for who in jury] == [21, 0, 21]
    court.ledger.enter(NODES[1], Challenge(batch=batch, index=1, claim="a", evidence=EVIDENCE))
    court.ledger.enter(ARBITER, Rule(batch=batch, index=1, challenger=NODES[1].address, upheld=True))
    assert [court.node(who).locked for who in jury] == [21, 0, 0]
    court.pass_steps(4)
    assert court.ledger.enter(KEYS[jury[0]], Withdraw(id="judged"))


@pytest.mark.parametrize("terms", [{"judge_pay": 7}])
def test_a_short_run_ends_with_every_credit_withdrawn(court: Court) -> None:
    court.judged([leaf(0), leaf(1, NODES[1])], "aa")
    late = court.work(leaf(2, NODES[2]), step=1)
    assert refusal(court.ledger, STRANGER, Close()) == "not-allowed"
    assert court.ledger.enter(COORDINATOR, Close())
    more = Work(batch=court.batch, step=1, leaves=(leaf(3),), beacon=LINKS[2])
    assert refusal(court.ledger, COORDINATOR, more) == "late"
    assert refusal(court.ledger, COORDINATOR, Fund(id="more", amount=5)) == "late"
    court.vote(late, "a")
    court.pass_steps(8)
    assert refusal(court.ledger, COORDINATOR, Refund()) == "early"  # work that waits for its verdict comes first
    court.ledger.enter(NODES[0], Settle(batch=late))
    court.pass_steps(6)
    assert court.ledger.totals().finished
    for node in NODES:
        assert court.ledger.enter(node, Unbond(id="all", amount=court.node(node.address).stake))
    for who in (*NODES, *VALIDATORS):
        assert court.ledger.enter(who, Withdraw(id="all"))
    assert court.ledger.enter(COORDINATOR, Refund())
    totals = court.ledger.totals()
    assert totals.paid_out == totals.brought_in
    assert totals.treasury == 0


def test_what_punishments_took_is_refunded_to_nobody(court: Court) -> None:
    court.judged([leaf(0)], "r")
    court.ledger.enter(COORDINATOR, Close())
    court.pass_steps(6)
    court.ledger.enter(COORDINATOR, Refund())
    assert court.ledger.totals().paid_out == 100_000
    assert court.ledger.totals().treasury == 300
