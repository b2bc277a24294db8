"""Rubbish of free keys against a whole run: it goes on, in bounded time and room, and nobody honest pays for it."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.client.rollout_store import _signal
from shoal.coordinator import nodes as registry
from shoal.coordinator.coordinator import MAX_ROOMS
from shoal.coordinator.http.body_limits import Scope
from shoal.coordinator.http.rate_limit import neighbours_of
from shoal.coordinator.http.server import Slots
from shoal.errors import UnreadError
from shoal.protocol import parquet_reader as decode
from shoal.protocol.lease import Lease
from shoal.protocol.stores import roots_of
from shoal.protocol.submission import Submission, groups_with_signal, read_rollouts, write_rollouts
from shoal.protocol.verdict import Finding, Verdict
from shoal.roles.session import JoinOptions, swarm_store
from shoal.roles.trainer import start_trainer
from shoal.roles.validator import Validator
from shoal.rundir import RunDir, limits_of
from shoal.tasks.source import Score, Split, Task
from tests.support.coordinator_in_process import TRAINER, World, key_of, world_at
from tests.support.model_and_checks import SAMPLING, TASKS, build_world, gym, model_dir
from tests.support.no_episodes import NoEpisodes
from tests.support.roles_in_process import entries, make_config, make_run, make_worker, notes, work_until_sent
from tests.support.strangers import Stranger
from tests.support.submissions import LIMITS, changed, make_lease, make_submission
from tests.support.validator_in_process import open_court

from .pages import with_hollow_pages

PLACES = [f"198.51.{number}.7" for number in range(6)]
SLOW_S = 60.0


class SlowScorer(NoEpisodes):
    """Answers that were made up take a minute; drawn ones do not."""

    def __init__(self) -> None:
        self.slow = 0

    def scores(self, split: Split, answers: Sequence[tuple[Task, str]], seconds: float = float("inf")) -> list[Score]:
        if any(is_made_up(answer) for _, answer in answers):
            self.slow += 1
            time.sleep(min(SLOW_S, seconds))
        return [Score(gym().score(task, answer)) for task, answer in answers]


MADE_UP = (40, 41)  # in turns: one token again and again is drawn now and then


@cache
def made_up_text() -> str:
    return str(build_world("short").maker().policy.tokenizer.decode(list(MADE_UP)))


def is_made_up(answer: str) -> bool:
    return len(answer) > 3 and answer == (made_up_text() * len(answer))[: len(answer)]


def made_up(submission: Submission) -> bytes:
    """Right prompts and lengths, and answers that nobody drew."""
    rollouts = [
        changed(r, completion=[MADE_UP[at % 2] for at in range(len(r.completion) - 1)] + [r.completion[-1]])
        for r in submission.rollouts
    ]
    rubbish = replace(submission, rollouts=rollouts)
    return write_rollouts(rubbish, groups_with_signal(rubbish))


def in_thread(work: Callable[[], None], failed: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def validator_of(run: RunDir, world: World) -> Validator:
    """The real one, whose files come from the coordinator."""
    court = open_court(run.path.parent / "court", build_world("short"))
    link, channel = world.validator._link, run.channel()
    limits = limits_of(run.config, court.validator.checks.policy.vocab)
    store = swarm_store(run, "validator", link, channel, limits, ignore)
    checks = replace(court.validator.checks, config=run.config, judge=SlowScorer(), root_of=roots_of(channel))
    base = channel.version(0)
    assert base is not None
    return replace(
        court.validator,
        run_dir=run,
        channel=channel,
        store=store,
        checks=checks,
        status=run.status("validator"),
        metrics=run.metrics("validator"),
        loaded=base,
    )


def ignore(_file: str, _reason: str) -> None: ...


def rubbish_of(run: RunDir) -> list[dict[str, Any]]:
    """Verdicts on files of anybody but the honest node."""
    verdicts = entries(run, "validator", "verdict")
    return [verdict for verdict in verdicts if verdict["node"] != key_of("honest").address]


@pytest.mark.timeout(1200)
def test_a_public_run_under_rubbish_of_free_keys_never_stops(tmp_path: Path) -> None:
    """Real coordinator, validator and trainer. Fresh keys of many networks hand in well-formed rubbish whose answers
    take a minute each to score, for longer than `wait_s`, while the one honest node does nothing. Nothing ends; when it
    works again its files are judged at once, and what is trained on is its own alone."""
    config = make_config(
        model_dir("short"), sampling=SAMPLING["short"], tasks=[TASKS], steps=3, wait_s=1.0, audit={"probation": 1}
    )
    run = make_run(tmp_path / "run", config)
    world = World(tmp_path, f"sqlite:///{tmp_path}/state.db", config)
    TRAINER.save(tmp_path / "trainer.key")
    world.start()
    failed: list[BaseException] = []
    try:
        validator = validator_of(run, world)
        scorer = validator.checks.judge
        assert isinstance(scorer, SlowScorer)
        key = key_of("honest")
        honest = make_worker(run, "honest", gym(), store=world.store(key), node=key.address)
        trainer = in_thread(lambda: start_trainer(run, JoinOptions(world.url, tmp_path / "trainer.key")), failed)
        judging = in_thread(validator.run, failed)
        until(lambda: newest(world) == 0, failed)
        work_until_sent(run, honest, name="honest")
        until(lambda: accepted_of(world, "honest") == 1, failed)

        stranger, maker = Stranger(world), build_world("short").maker()
        maker.policy.set_weights(honest.maker.policy.weights(), "version 0")
        handed_in, began, waited = 0, time.monotonic(), notes(run).count("it goes on")
        while notes(run).count("it goes on") < waited + 2 or handed_in < 8:
            assert time.monotonic() - began < 300
            assert not failed
            place, name = PLACES[handed_in % len(PLACES)], f"fresh-{handed_in}"
            stranger.join(name, place)
            if (lease := stranger.lease(name, place)) is None:
                time.sleep(0.05)
                continue
            data = made_up(maker.make(Lease(**lease), honest.newest()))
            target = f"/v1/files/{lease['step']}/{lease['submission']}?signal={_signal(data)}"
            stranger.ask(key_of(name), place, "PUT", target, data=data)
            handed_in += 1
        # The run may end before it is known what became of the others'.
        until(lambda: len(rubbish_of(run)) >= 4, failed)
        assert trainer.is_alive()
        work = in_thread(honest.run, failed)
        for thread in (trainer, judging, work):
            thread.join(300)
            assert not failed
            assert not thread.is_alive()
    finally:
        world.end()
    steps = entries(run, "trainer", "step")
    assert [step["step"] for step in steps] == [0, 1, 2]
    verdicts = entries(run, "validator", "verdict")
    own = {(v["step"], v["submission"]) for v in verdicts if v["node"] == key_of("honest").address and v["accept"]}
    assert {(step["step"], number) for step in steps for number in step["submissions"]} <= own
    rubbish = rubbish_of(run)
    assert len(rubbish) >= 4
    assert {(verdict["accept"], verdict["check"]) for verdict in rubbish} == {(False, "sampling")}
    assert scorer.slow == 0
    assert all(verdict["accept"] for verdict in verdicts if verdict["node"] == key_of("honest").address)


def newest(world: World) -> int | None:
    found: int | None = world.validator._link.get("/v1/versions")["newest"]
    return found


def accepted_of(world: World, name: str) -> int:
    return int(world.store(key_of(name))._link.heartbeat()["accepted"])


def until(done: Callable[[], bool], failed: Sequence[BaseException], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert not failed
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_evidence_of_an_early_step_never_ends_the_validator(tmp_path: Path) -> None:
    """A stranger fills the folder with rejected files of a late step, and then hands one in for an early one."""
    court = open_court(tmp_path / "run", build_world("short"), keep={"evidence": 4})
    folder = court.run.path / "evidence"
    folder.mkdir()
    for number in range(5):
        (folder / f"step-000900-{number:04d}.json").write_text("{}")
    lease = court.lease("early")
    court.store.put(lease, b"rubbish")
    court.judge()
    assert court.validator.strikes["early"] == 1
    assert court.evidence(lease).exists()


def test_pages_that_hold_next_to_nothing_never_keep_the_reader_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kilobytes that unfold to gigabytes, a page at a time, so that no bound of memory ends it."""
    monkeypatch.setattr(decode, "MAX_CPU_S", 1)
    good, path = make_submission(make_lease(groups=96)), tmp_path / "0000.parquet"
    data = with_hollow_pages(write_rollouts(good, groups_with_signal(good)), [0, 1, 3, 9], 80 << 20)
    assert len(data) < 1 << 22
    path.write_bytes(data)
    before = sum(decode_times())
    with pytest.raises(UnreadError, match="busier than any file of its size") as unread:
        read_rollouts(path, good.lease, LIMITS)
    assert not unread.value.again
    assert sum(decode_times()) - before < 10
    path.write_bytes(write_rollouts(good, groups_with_signal(good)))
    assert len(read_rollouts(path, good.lease, LIMITS).rollouts) == len(good.rollouts)


def decode_times() -> tuple[float, float]:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime, used.ru_stime


def test_rubbish_of_one_place_never_comes_as_fast_as_it_is_judged(tmp_path: Path) -> None:
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}") as world:
        world.announce()
        stranger, most = Stranger(world), world.config.swarm.probation_files
        for number in range(3 * most):
            came = stranger.spoil(f"key-{number}", PLACES[0])
            assert came == (number < most)
            refuse_all(world)
        stranger.join("elsewhere", PLACES[1])
        assert stranger.lease("elsewhere", PLACES[1]) is not None
        world.clock.ahead += world.config.new_lease_s + 1
        assert stranger.spoil("later", PLACES[0])


def refuse_all(world: World) -> None:
    for upload in world.validator.waiting(0, 20):
        finding = Finding("format", "a file is what its lease asks for", "", "rubbish")
        world.validator.judge(upload, Verdict(False, "", False, finding))


def test_strangers_behind_a_proxy_on_the_coordinators_machine_never_pass_for_its_own(tmp_path: Path) -> None:
    def scope(said: str) -> Scope:
        return {"client": ("127.0.0.1", 1), "headers": [(b"x-forwarded-for", said.encode())] if said else []}

    assert neighbours_of(scope("")) == ""
    assert neighbours_of(scope("127.0.0.1, 203.0.113.9")) == "203.0.113.0/24"
    assert neighbours_of(scope("10.0.0.1, ::ffff:198.51.100.4")) == "198.51.100.0/24"
    assert neighbours_of(scope("127.0.0.1,")) != ""
    assert neighbours_of({"client": ("203.0.113.9", 1), "headers": [(b"x-forwarded-for", b"127.0.0.1")]}) != ""


def test_joining_a_full_run_again_and_again_never_costs_more_than_its_networks_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    make_room = registry._make_room

    def count(*asked: Any) -> str | None:
        looked.append(asked[-1])
        return make_room(*asked)

    monkeypatch.setattr(registry, "_make_room", count)
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm={"max_nodes": 3}) as world:
        world.announce()
        stranger = Stranger(world)
        for number in range(40):
            stranger.send(key_of(f"key-{number}"), PLACES[0], "POST", "/v1/nodes", b'{"role": "worker"}')
        assert 1 <= len(looked) <= MAX_ROOMS + 1
        stranger.join("key-0", PLACES[0])
        stranger.send(key_of("newcomer"), PLACES[1], "POST", "/v1/nodes", b'{"role": "worker"}')
        assert looked[-1] == "198.51.1.0/24"


class Line:
    """A connection's transport, as far as limits look at it."""

    def __init__(self, host: str) -> None:
        self.host, self.cut = host, False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return self.host, 1

    def abort(self) -> None:
        self.cut = True


def test_two_networks_that_hold_every_connection_never_keep_a_third_out() -> None:
    slots = Slots(8)
    hoarded = [Line(f"2001:db8:{number % 2}:{number}::1") for number in range(8)]  # a /64 each, of two customers
    assert all(slots.enter(line, cast("Any", line)) for line in hoarded)
    extra, honest = Line("2001:db8:0:99::1"), [Line("203.0.113.9"), Line("192.0.2.4")]
    assert not slots.enter(extra, cast("Any", extra))
    slots.leave(extra)
    assert all(slots.enter(line, cast("Any", line)) for line in honest)
    assert [line.cut for line in hoarded] == [True, True] + [False] * 6
    assert not any(line.cut for line in honest)
    slots.leave(hoarded[0])  # the server is told of the end of what was cut
    assert len(slots._networks) == 8
