"""What a worker hands in follows from its lease and the weights; it chooses nothing and hides nothing."""

import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from shoal.errors import ModelError, RolloutError, TaskError, WeightsError
from shoal.models.load import Policy
from shoal.models.weights import WEIGHTS, read_weights
from shoal.protocol.lease import Lease
from shoal.protocol.spans import SpanLease
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission, groups_with_signal, read_rollouts, write_rollouts
from shoal.rl.advantages import group_advantages
from shoal.roles.turns import TurnWorker
from shoal.roles.worker import Worker
from shoal.rundir import RunDir, limits_of
from shoal.tasks.source import Task
from tests.support.memory_store import MemoryStore, records_of
from tests.support.roles_in_process import (
    Coin,
    base_version,
    entries,
    judging_store,
    make_config,
    make_run,
    make_worker,
    notes,
    work_until_sent,
)
from tests.support.submissions import judge_formats, make_lease


class Failing(Coin):
    """A scorer that raises on about a third of the answers."""

    def score(self, task: Task, answer: str) -> float:
        if answer and ord(answer[0]) % 3 == 0:
            raise ZeroDivisionError("no luck")
        return super().score(task, answer)


class AlwaysFailing(Coin):
    def score(self, task: Task, answer: str) -> float:
        raise OSError("scorer lost")


class Verbose(Coin):
    def task(self, split: str, index: int) -> Task:
        return Task(self.name, index, "x" * 40, None, {})


@pytest.fixture
def run(tmp_path: Path, tiny_dir: Path) -> RunDir:
    return make_run(tmp_path / "run", make_config(tiny_dir))


@pytest.fixture
def worker(run: RunDir) -> Iterator[Worker]:
    worker = make_worker(run)
    yield worker
    worker.metrics.close()


def made(worker: Worker, lease: Lease, run: RunDir) -> tuple[Submission, int]:
    submission = worker.maker.make(lease, base_version(run))
    return submission, groups_with_signal(submission)


def publish(run: RunDir, number: int, shift: float = 0.01) -> Version:
    """A version whose weights are the base model's, moved."""
    base = read_weights(run.base_model, "float32")
    with run.channel().publish(number) as staging:
        save_file({name: tensor + shift for name, tensor in base.items()}, staging / WEIGHTS)
    version = run.channel().version(number)
    assert version is not None
    return version


def test_a_submission_follows_from_lease_and_weights_alone(run: RunDir, worker: Worker) -> None:
    lease = make_lease(groups=3)
    first = made(worker, lease, run)
    made(worker, replace(lease, submission=9), run)  # other work in between leaves no trace
    assert made(worker, lease, run) == first
    other = make_worker(run, max_batch=3)
    assert [(r.completion.tolist(), r.reward, r.finish) for r in made(other, lease, run)[0].rollouts] == [
        (r.completion.tolist(), r.reward, r.finish) for r in first[0].rollouts
    ]


def test_a_submission_holds_every_sample_of_every_group_in_order(run: RunDir, worker: Worker) -> None:
    submission, _ = made(worker, make_lease(groups=3), run)
    assert [(r.group, r.sample) for r in submission.rollouts] == [(g, s) for g in range(3) for s in range(4)]
    for r in submission.rollouts:
        assert 1 <= len(r.completion) <= 5
        assert len(r.logprobs) == len(r.completion)
        assert r.reward == Coin().score(Coin().task("train", r.task), worker.maker.policy.decode(r.completion))


def test_tasks_and_seeds_are_the_leases_own(run: RunDir, worker: Worker) -> None:
    lease = make_lease(groups=4)
    submission, _ = made(worker, lease, run)
    assert [r.task for r in submission.rollouts[::4]] == [lease.task_index(group) for group in range(4)]
    prompts = [worker.maker.policy.encode(Coin().task("train", lease.task_index(group)).prompt) for group in range(4)]
    assert [r.prompt.tolist() for r in submission.rollouts[::4]] == prompts


@pytest.mark.parametrize("field", ["submission", "step", "run", "beacon"])
def test_two_leases_share_neither_tasks_nor_noise(run: RunDir, worker: Worker, field: str) -> None:
    changes = {"submission": 1, "step": 4, "run": "other", "beacon": 8}
    one, other = make_lease(groups=3), make_lease(groups=3, **{field: changes[field]})
    first, second = made(worker, one, run)[0], made(worker, other, run)[0]
    assert not {r.task for r in first.rollouts} & {r.task for r in second.rollouts}
    assert one.seed != other.seed
    # On one and the same prompt, too, the draws are independent: a random model hardly ever repeats five bytes.
    assert not {tuple(r.completion) for r in first.rollouts} & {tuple(r.completion) for r in second.rollouts}


def test_samples_of_a_group_differ_from_each_other(run: RunDir, worker: Worker) -> None:
    submission, _ = made(worker, make_lease(groups=2), run)
    assert len({tuple(r.completion) for r in submission.rollouts}) == 8


def test_advantages_are_those_of_the_rewards_and_signal_is_counted(run: RunDir, worker: Worker) -> None:
    submission, signal = made(worker, make_lease(groups=12), run)
    rewards_GS = torch.tensor([r.reward for r in submission.rollouts]).view(12, 4)
    assert 0 < signal < 12
    assert signal == int((rewards_GS.amax(dim=1) > rewards_GS.amin(dim=1)).sum())
    expected = group_advantages(rewards_GS, normalise=True).flatten().tolist()
    assert [r.advantage for r in submission.rollouts] == pytest.approx(expected)


def test_a_scorer_that_raises_costs_its_group_the_signal_and_nothing_else(run: RunDir) -> None:
    worker = make_worker(run, tasks=Failing())
    submission, signal = made(worker, make_lease(groups=12), run)
    groups = [submission.rollouts[first : first + 4] for first in range(0, 48, 4)]
    failed = [group for group in groups if any(r.reward is None for r in group)]
    whole = [group for group in groups if all(r.reward is not None for r in group)]
    assert failed
    assert whole
    for group in failed:
        assert [r.advantage for r in group] == [0.0] * 4
        for r in group:
            assert ("coin task" in r.error and "ZeroDivisionError: no luck" in r.error) == (r.reward is None)
    assert signal == sum(len({r.reward for r in group}) > 1 for group in whole)
    write_rollouts(submission, signal)


def test_a_scorer_that_always_raises_gives_a_file_that_is_accepted_as_data(run: RunDir) -> None:
    worker = make_worker(run, tasks=AlwaysFailing())
    lease = worker.store.lease(worker.name, 0)
    assert lease is not None
    submission, signal = made(worker, lease, run)
    assert signal == 0
    assert all(r.reward is None and "OSError: scorer lost" in r.error for r in submission.rollouts)
    worker.store.put(lease, write_rollouts(submission, signal))
    store = judging_store(run, worker)
    judge_formats(store, lease.step, lease.step)
    (accepted,) = store.accepted(lease.step)
    assert [r.error for r in accepted.rollouts] == [r.error for r in submission.rollouts]


def test_a_prompt_that_is_too_long_is_a_named_error(run: RunDir) -> None:
    worker = make_worker(run, tasks=Verbose())
    with pytest.raises(TaskError, match=r"coin task \d+: .* 41 tokens, allowed 24; raise sampling.max_prompt_tokens"):
        made(worker, make_lease(), run)


def test_work_is_done_with_the_newest_version_and_says_so(run: RunDir, worker: Worker) -> None:
    version = publish(run, 1)
    work_until_sent(run, worker)
    store = judging_store(run, worker)
    judge_formats(store, 1, 1)
    submission = next(store.accepted(1))
    assert (submission.version, submission.weights) == (1, version.root)
    assert worker.loaded == version
    base = read_weights(run.base_model, "float32")
    moved = worker.maker.policy.weights()
    assert all(torch.equal(moved[name], base[name] + 0.01) for name in base)


def test_a_worker_goes_back_to_the_base_model_when_all_versions_are_retracted(run: RunDir, worker: Worker) -> None:
    before = {name: tensor.clone() for name, tensor in worker.maker.policy.weights().items()}
    assert worker.load(publish(run, 1))
    run.channel().retract(0)
    assert worker.load(worker.newest())
    assert all(torch.equal(tensor, before[name]) for name, tensor in worker.maker.policy.weights().items())


def test_a_version_that_vanishes_before_it_is_read_is_noted_and_passed_over(run: RunDir, worker: Worker) -> None:
    version = publish(run, 1)
    run.channel().retract(0)
    assert not worker.load(version)
    assert worker.loaded == base_version(run)
    assert "version 1" in notes(run, worker.name)


def test_a_version_that_vanishes_while_it_is_read_is_noted_and_passed_over(
    run: RunDir, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = publish(run, 1)
    channel = worker.channel
    fetch = type(channel).fetch

    def fetch_then_lose(self: object, wanted: Version) -> Path:
        folder = fetch(channel, wanted)
        run.channel().retract(0)
        return folder

    monkeypatch.setattr(type(channel), "fetch", fetch_then_lose)
    assert not worker.load(version)
    assert "not a readable safetensors file" in notes(run, worker.name)


def test_a_version_that_is_there_but_damaged_ends_the_worker_instead_of_spinning(run: RunDir, worker: Worker) -> None:
    version = publish(run, 1)
    path = run.channel().fetch(version) / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1] + b"\x00\x01")
    with pytest.raises(WeightsError, match=r"version 1: .* is not the file that was published"):
        worker.run()


def test_a_version_of_another_model_is_refused_by_number(run: RunDir, worker: Worker) -> None:
    with run.channel().publish(1) as staging:
        save_file({"foreign": torch.zeros(2)}, staging / WEIGHTS)
    with pytest.raises(ModelError, match="version 1: lacks"):
        worker.run()
    assert not records_of(run.path).leases, "a lease that is held by a worker that cannot load its version is let go"


def test_a_version_that_vanishes_while_it_is_loaded_leaves_no_lease_behind(
    run: RunDir, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_version(run)
    publish(run, 1)
    engine = worker.maker.engine
    load = engine.load

    def load_half(folder: Path, origin: str) -> None:
        if origin == "version 1":
            run.channel().retract(0)
            raise ModelError("version 1: the engine's weights are not the version's")
        load(folder, origin)

    monkeypatch.setattr(engine, "load", load_half)
    work_until_sent(run, worker)
    assert "version 1: the engine's weights are not the version's" in notes(run, worker.name)
    assert worker.loaded == base
    assert {lease.version for lease in records_of(run.path).leases.values()} == {base.number}


def test_a_worker_in_turns_loads_the_version_before_it_asks_for_a_lease(run: RunDir) -> None:
    with run.channel().publish(1) as staging:
        save_file({"foreign": torch.zeros(2)}, staging / WEIGHTS)
    honest = make_worker(run)
    parts = (honest.config, honest.channel, honest.store, honest.maker, honest.status, honest.metrics, honest.loaded)
    with pytest.raises(ModelError, match="version 1: lacks"):
        TurnWorker(honest.name, *parts).run()
    assert not records_of(run.path).leases


def test_a_worker_without_a_trainer_fills_what_it_may_then_waits_and_says_so(tmp_path: Path, tiny_dir: Path) -> None:
    run = make_run(tmp_path / "run", make_config(tiny_dir, wait_s=0.1))
    worker = make_worker(run)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while notes(run, "worker-0").count("waiting for policy version 1 or a lease") < 3:
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # Paced: version 0 may serve steps 0 and 1, and nothing was made for step 2.
    assert isinstance(worker.store, MemoryStore)
    counts = [worker.store.count(step) for step in range(3)]
    assert all(count.signal >= 4 for count in counts[:2])
    assert counts[2].seen == 0
    with run.channel().publish(run.config.steps) as staging:
        shutil.copy2(run.base_model / WEIGHTS, staging / WEIGHTS)
    thread.join(60)
    assert not thread.is_alive()


def test_a_worker_ends_when_the_last_version_is_out(run: RunDir, worker: Worker) -> None:
    publish(run, 3)
    worker.run()
    assert not records_of(run.path).leases


def test_a_run_without_any_version_says_how_to_prepare_it(run: RunDir, worker: Worker) -> None:
    shutil.rmtree(run.path / "weights")
    with pytest.raises(WeightsError, match="no policy version is published; prepare the run"):
        worker.run()


def test_a_killed_worker_takes_up_its_own_lease_again(run: RunDir, worker: Worker, tiny_policy: Policy) -> None:
    lease = worker.store.lease(worker.name, 0)
    again = make_worker(run)
    assert again.store.lease(again.name, 0) == lease
    assert make_worker(run, name="worker-1").store.lease("worker-1", 0) != lease


def files_of(run: RunDir) -> dict[Lease, bytes]:
    records = records_of(run.path)
    done = [lease for place, lease in records.leases.items() if place in records.signal]
    return {lease: records.file(lease).read_bytes() for lease in done}


def test_a_file_is_the_same_whatever_else_was_generated_beside_it(tmp_path: Path, tiny_dir: Path) -> None:
    """Four leases side by side in one engine, or each alone in its own: the same tokens and rewards."""
    run = make_run(tmp_path / "run", make_config(tiny_dir, train={"groups_per_step": 8}))
    worker = make_worker(run, max_batch=64)
    worker.pipeline.max_batch = 64
    most = 0
    while len(entries(run, "worker-0", "submission")) < 4:
        assert worker.turn()
        most = max(most, len(worker.pipeline.flights))
    assert most > 1, "leases were generated side by side"
    alone = make_worker(run, name="worker-1", max_batch=4)
    for lease, data in files_of(run).items():
        made, _ = alone.maker.file(lease, base_version(run))
        (path := tmp_path / "0000.parquet").write_bytes(data)
        found = read_rollouts(path, lease, limits_of(run.config, alone.maker.policy.vocab))
        for one, other in zip(found.rollouts, made.rollouts, strict=True):
            assert np.array_equal(one.completion, other.completion)
            assert np.allclose(one.logprobs, other.logprobs, atol=1e-4)
            assert (one.reward, one.finish) == (other.reward, other.finish)


def test_a_worker_that_was_killed_repeats_every_lease_that_it_held_token_for_token(
    tmp_path: Path, tiny_dir: Path
) -> None:
    run = make_run(tmp_path / "run", make_config(tiny_dir, train={"groups_per_step": 8}))
    killed = make_worker(run)
    while len(killed.pipeline.flights) < 2:
        assert killed.turn()
    held = {flight.lease for flight in killed.pipeline.flights}
    expected = {lease: killed.maker.asked(lease).requests for lease in held}
    again = make_worker(run)
    while not held <= files_of(run).keys():
        assert again.turn()
    for lease in held:
        (path := tmp_path / "0000.parquet").write_bytes(files_of(run)[lease])
        found = read_rollouts(path, lease, limits_of(run.config, again.maker.policy.vocab))
        texts = sorted(make_worker(run, name="x").maker.engine.generate(expected[lease]), key=lambda c: c.key)
        assert [r.completion.tolist() for r in found.rollouts] == [c.tokens for c in texts]


def test_a_file_that_is_not_taken_is_noted_and_the_worker_goes_on(
    run: RunDir, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = worker.store.put
    refused: list[Lease] = []

    def refuse_one(lease: Lease, data: bytes) -> None:
        if not refused:
            refused.append(lease)
            raise RolloutError(f"{lease}: expired 3 s ago")
        put(lease, data)

    monkeypatch.setattr(worker.store, "put", refuse_one)
    work_until_sent(run, worker)
    assert "expired 3 s ago" in notes(run, worker.name)


def test_what_goes_wrong_beside_generation_ends_the_worker(
    run: RunDir, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.store, "put", lambda _lease, _data: (_ for _ in ()).throw(WeightsError("lost")))
    with pytest.raises(WeightsError, match="lost"):
        worker.run()


def test_work_for_a_step_that_is_over_is_dropped(run: RunDir, worker: Worker) -> None:
    while not worker.pipeline.flights:
        assert worker.turn()
    lease = worker.pipeline.flights[0].lease
    publish(run, 1)
    publish(run, 2)
    worker.look_at = 0.0  # a fast machine could be done before it looks again
    while any(flight.lease == lease for flight in worker.pipeline.flights):
        assert worker.turn()
    assert f"{lease}: its step is over" in notes(run, worker.name)
    assert lease not in files_of(run)
    assert all(flight is not None for flight, _ in worker.pieces.values())


def test_work_that_was_to_go_on_with_a_version_that_is_taken_back_is_dropped(tmp_path: Path, tiny_dir: Path) -> None:
    long = {"max_new_tokens": 120, "group_size": 2}
    config = make_config(
        tiny_dir, async_level=2, sampling=long, workers={"in_flight": True}, train={"token_budget": 512}
    )
    run = make_run(tmp_path / "run", config)
    worker = make_worker(run)
    while not worker.pipeline.flights:
        assert worker.turn()
    flight, gone = worker.pipeline.flights[0], publish(run, 1)
    flight.later.append(SpanLease(32, gone.number, gone.root, beacon=1))
    worker.seen, worker.look_at = gone, 0.0
    run.channel().retract(0)
    assert worker.turn()
    assert f"{flight.lease}: its step is over, or its version was taken back" in notes(run, worker.name)
    assert flight not in worker.pipeline.flights


def test_a_worker_that_is_told_to_finish_hands_in_what_is_under_way_and_takes_no_more(
    run: RunDir, worker: Worker
) -> None:
    while not worker.pipeline.flights:
        assert worker.turn()
    worker.finish.set()
    while worker.turn():
        pass
    records = records_of(run.path)
    assert records.leases
    assert set(records.leases) == set(records.signal), "every lease has its file"
    assert not worker.pipeline.flights
    worker.run()
    assert worker.status.now.doing == "its leases are done"
