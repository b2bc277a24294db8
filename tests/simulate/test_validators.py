"""Simulated validators: they choose, share and change versions as real ones do."""

from collections import Counter
from dataclasses import replace
from math import inf

import pytest

from shoal.config import MAX_VALIDATORS, AuditConfig
from shoal.coordinator.judging_turns import FIRST_S
from shoal.plan.assumptions import assumptions
from shoal.protocol.stores import PROVEN
from shoal.simulate.book import Book, File, LeaseRow, NodeRow
from shoal.simulate.events import Events
from shoal.simulate.from_config import Chosen, inputs_of
from shoal.simulate.inputs import Inputs
from shoal.simulate.models import model_named
from shoal.simulate.processor import Processor
from shoal.simulate.validators import Validators
from tests.simulate.test_simulation import small
from tests.support.coordinator_in_process import make_config

LOAD_S, JUDGE_S = 30.0, 1.0


class Court:
    """Validators beside a coordinator's books, and files of proven nodes."""

    def __init__(self, validators: int, *, load_s: float = LOAD_S, audit: AuditConfig | None = None) -> None:
        base = small(audit=audit or AuditConfig(rate=1.0))
        self.inputs: Inputs = replace(
            base,
            machines=replace(base.machines, load_s=load_s),
            services=replace(base.services, validators=validators, judge_s=JUDGE_S, judge_token_s=0.0, verdict_s=0.0),
        )
        self.events = Events()
        self.book = Book(self.inputs.terms, self.events)
        self.accepted: list[File] = []
        processor = Processor(self.events)
        self.validators = Validators(self.inputs, self.events, self.book, processor, self.accepted.append)

    def hand_in(self, step: int, version: int, *, groups: int = 1, tokens: float = 0.0) -> File:
        node, tally = NodeRow(len(self.accepted) + self.validators.waiting), self.book.tally(step)
        node.accepted, node.record = 9, PROVEN
        row = LeaseRow(node, step, tally.number, version, groups, 0.0, 1e9)
        node.leases.append(row)
        tally.number += 1
        tally.leased[PROVEN] += groups
        file = self.book.hand_in(row, groups, tokens, 0.0)
        assert file is not None
        self.validators.add(file)
        return file

    def run(self, until: float = inf) -> list[int]:
        """The versions of the files in the order of their verdicts."""
        self.events.run(lambda: False, until)
        return [file.lease.version for file in self.accepted]


def test_a_validator_judges_all_files_of_the_version_that_it_has_loaded_before_it_changes_to_an_older_one() -> None:
    court = Court(1)
    court.hand_in(2, 2)
    court.events.run(lambda: False, LOAD_S / 2)
    for version in (1, 2, 1, 2):
        court.hand_in(2, version)
    assert court.run() == [2, 2, 2, 1, 1]
    assert court.validators.busy_s() == 2 * LOAD_S + 5 * JUDGE_S


def test_an_earlier_step_comes_before_the_version_that_is_loaded() -> None:
    court = Court(1)
    court.hand_in(3, 2)
    court.events.run(lambda: False, LOAD_S / 2)
    for step, version in ((3, 2), (2, 1)):
        court.hand_in(step, version)
    court.run()
    assert [file.lease.step for file in court.accepted] == [3, 2, 3]


def test_files_of_the_base_need_no_loading() -> None:
    court = Court(1)
    court.hand_in(0, 0)
    court.run()
    assert court.validators.busy_s() == JUDGE_S


@pytest.mark.parametrize("count", [2, 5])
def test_several_validators_judge_each_file_once_and_no_one_idles_while_files_wait(count: int) -> None:
    court = Court(count)
    files = [court.hand_in(0, 0) for _ in range(20 * count)]
    court.events.run(lambda: len(court.accepted) == len(files), inf)
    assert Counter(court.accepted) == Counter(files)
    assert court.events.now == 20 * JUDGE_S
    assert court.validators.busy_s() == len(files) * JUDGE_S


def test_of_several_validators_each_changes_versions_as_its_own_files_come() -> None:
    """Each is dealt one file at a time, in the coordinator's order: it cannot choose by what it has loaded."""
    court = Court(2)
    for _ in range(2):
        court.hand_in(2, 2)
    court.events.run(lambda: False, LOAD_S / 2)
    for version in (2, 2, 1, 1):
        court.hand_in(2, version)
    assert court.run()[:4] == [2, 2, 1, 1]
    assert court.validators.busy_s() >= 4 * LOAD_S


def test_a_file_of_a_validator_that_is_late_goes_to_the_next_and_counts_once() -> None:
    court = Court(2, load_s=10 * FIRST_S)
    file = court.hand_in(2, 1)
    court.run()
    assert court.validators.busy_s() == 2 * (10 * FIRST_S + JUDGE_S), "the second began as well"
    assert court.accepted == [file]
    assert court.validators.waiting == 0
    assert court.validators.waited_s == [10 * FIRST_S + JUDGE_S]


@pytest.mark.parametrize(("groups", "answers"), [(1, 2), (8, 8)])
def test_of_a_small_file_as_many_answers_are_computed_again_as_a_validator_draws_at_least(
    groups: int, answers: int
) -> None:
    """The share alone, a sixteenth, would be one of sixteen answers."""
    court = Court(1, audit=AuditConfig(rate=1e-12, probation=0, spot_share=1 / 16))
    services = replace(court.inputs.services, judge_token_s=1.0, judge_s=0.0)
    court.validators._inputs = replace(court.inputs, services=services)
    court.hand_in(0, 0, groups=groups, tokens=groups * 16 * 100.0)
    court.run()
    assert court.validators.busy_s() == pytest.approx(answers * 100.0)


def test_there_are_no_more_validators_than_a_run_may_have_and_twice_the_draws_take_more_of_them() -> None:
    def validators(nodes: int, groups: int) -> int:
        workers = {"groups_per_submission": groups}
        config = make_config(
            model={"source": "tiny", "dtype": "bfloat16"}, workers=workers, sampling={"group_size": 16}
        )
        chosen = Chosen(nodes=nodes, steps=2)
        return inputs_of(config, assumptions(config), chosen, model_named("32b")).services.validators

    assert validators(1000, 1) > 1.3 * validators(1000, 8) > 5
    assert validators(1_000_000, 1) == MAX_VALIDATORS
