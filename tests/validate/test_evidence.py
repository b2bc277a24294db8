"""Evidence: anyone with the bundle and the version comes to the same verdict, and a false accusation is refuted."""

import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from shoal.cli import app
from shoal.errors import ConfigError, RolloutError, ShoalError, WeightsError
from shoal.files import sha256_file
from shoal.protocol.stores import Version
from shoal.protocol.submission import parquet_of
from shoal.protocol.verdict import ROUNDING, Finding
from shoal.tasks.source import InProcess
from shoal.validate.evidence import bundle as evidence
from shoal.validate.evidence import replay as again
from shoal.validate.evidence import samples
from shoal.validate.evidence.bundle import bundle_of, prune_evidence, read_bundle, write_bundle
from shoal.validate.evidence.kept_versions import VERSIONS, find_version, keep_version, prune_versions
from shoal.validate.evidence.replay import replay_bundle
from shoal.validate.numerics.account import BAN_NATS, Account
from shoal.validate.numerics.evidence_log import EvidenceLog
from shoal.validate.numerics.judge import BETS, NOT_SHOWN, Weighed, finding_of
from tests.support.model_and_checks import World, build_world, gym, with_sample
from tests.support.submissions import make_rollout
from tests.support.validator_in_process import Court, InThisProcess, open_court

ATTACK_OF = {
    "format": "truncated",
    "tasks": "changed_prompt",
    "rewards": "false_reward",
    "sampling": "best_of_n",
    "logprobs": "false_logprobs",
    "computation": "own_mean_proof",
}


def pq_of(columns: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


GOOD_ROLLOUTS = parquet_of([make_rollout()], {})


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory, world: World) -> Court:
    return open_court(tmp_path_factory.mktemp("court") / "run", world, audit={"strikes": 1000})


@pytest.fixture(autouse=True)
def quick_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "Scorer", InThisProcess)


def judged(court: Court, attack: str) -> Path:
    lease = court.hand_in("cheat", attack)
    court.judge()
    return court.evidence(lease)


def replayed(path: Path, weights: Path | None = None) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=400)
    agrees = replay_bundle(path, console, [weights] if weights else [])
    assert isinstance(console.file, io.StringIO)
    return agrees, console.file.getvalue()


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a bundle beside it, with something changed."""
    tree = json.loads(path.read_bytes())
    change(tree)
    target = path.with_name(f"edited-{path.name}")
    target.write_text(json.dumps(tree))
    return target


@pytest.mark.parametrize(("check", "attack"), ATTACK_OF.items())
def test_a_verdict_of_every_kind_is_reached_again(court: Court, check: str, attack: str) -> None:
    path = judged(court, attack)
    bundle = read_bundle(path)
    assert bundle.finding.check == check
    agrees, text = replayed(path)
    assert agrees, text
    assert "the same rule is broken at the same place" in text
    assert str(bundle.finding) in text


def test_a_verdict_on_a_whole_file_is_reached_again(tmp_path: Path, world: World) -> None:
    """As where more tokens than rounding explains are not the best."""
    court = open_court(tmp_path / "run", world, audit={"thresholds": {"shortfall": 1e9}})
    path = judged(court, "best_of_n")
    bundle = read_bundle(path)
    assert (bundle.finding.check, bundle.finding.sample) == ("sampling", None)
    assert len(bundle.rollouts) == 16
    assert replayed(path)[0]


def test_a_bundle_holds_the_group_of_the_accused_sample_and_comes_back_as_it_was(court: Court) -> None:
    honest = court.honest("cheat")
    lease = court.hand_in_submission(with_sample(honest, 11, advantage=0.123))
    court.judge()
    bundle = read_bundle(court.evidence(lease))
    assert (bundle.finding.check, bundle.finding.sample) == ("rewards", 11)
    assert (bundle.first, [r.sample for r in bundle.rollouts]) == (8, list(range(8)))
    assert (bundle.lease, bundle.version, bundle.root) == (lease, 1, court.version().root)
    assert bundle.sha256 == court.verdict(lease).sha256
    target = court.run.path / "copy.json"
    write_bundle(bundle, target)
    assert read_bundle(target) == bundle
    assert replayed(court.evidence(lease))[0]


def test_long_samples_stand_in_a_parquet_file_beside_a_small_bundle(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = judged(court, "best_of_n")
    assert not samples.samples_path(short).exists()
    monkeypatch.setattr(samples, "MAX_JSON_TOKENS", 20)
    path = judged(court, "best_of_n")
    file = samples.samples_path(path)
    assert json.loads(path.read_bytes())["rollouts"] == {"sha256": sha256_file(file)}
    assert len(read_bundle(path).rollouts) == 8
    assert replayed(path)[0]
    kept = file.read_bytes()
    file.write_bytes(samples.samples_path(judged(court, "best_of_n")).read_bytes())
    with pytest.raises(RolloutError, match=r"has SHA-256 [0-9a-f]{12}, step-.* is about '[0-9a-f]{12}"):
        replayed(path)
    file.unlink()
    with pytest.raises(RolloutError, match="cannot be read"):
        replayed(path)
    file.write_bytes(kept)
    prune_evidence(path.parent, before=1000)
    assert not list(path.parent.glob(f"{path.stem}.*"))


@pytest.mark.parametrize("content", [b"", b"PAR1", GOOD_ROLLOUTS[:-9], pq_of({"group": [1]})])
def test_samples_that_are_not_what_they_should_be_are_a_clear_error(
    court: Court, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(samples, "MAX_JSON_TOKENS", 0)
    path = judged(court, "false_reward")
    samples.samples_path(path).write_bytes(content)
    said = {"sha256": hashlib.sha256(content).hexdigest()}
    tree = json.loads(path.read_bytes()) | {"rollouts": said}
    path.write_text(json.dumps(tree))
    with pytest.raises(RolloutError, match=r"step-.*parquet: (not a readable|damaged|its columns are)"):
        replayed(path)


def test_a_false_end_is_reached_again_and_refuted_when_mended(court: Court) -> None:
    honest = court.honest("cheat")
    number = next(n for n, r in enumerate(honest.rollouts) if r.finish == "eos")
    lease = court.hand_in_submission(with_sample(honest, number, finish="length"))
    court.judge()
    path = court.evidence(lease)
    assert read_bundle(path).finding.check == "termination"
    assert replayed(path)[0]
    fixed = edited(path, lambda tree: tree["rollouts"][number % 8].update(finish="eos"))
    assert not replayed(fixed)[0]


def test_an_accusation_that_was_made_up_is_refuted(court: Court) -> None:
    honest = court.honest("innocent")
    lease = court.hand_in_submission(honest)
    path = court.store.records.file(lease)
    target = court.run.path / "evidence" / "made-up.json"
    for check in ("rewards", "tasks", "termination", "sampling", "logprobs", "computation"):
        lie = Finding(check, "a rule", "claimed", "found", 3)
        write_bundle(bundle_of(court.run.config, path, lease, honest, lie), target)
        agrees, text = replayed(target)
        assert not agrees
        assert "the rejection does not hold" in text
    write_bundle(bundle_of(court.run.config, path, lease, None, Finding("format", "a rule", "x", "y")), target)
    assert not replayed(target)[0]
    court.judge()


def test_a_file_that_was_dropped_for_more_than_it_shows_is_not_called_a_wrong_verdict(tmp_path: Path) -> None:
    """In bfloat16 runs: for what other files of its node showed, or beside the version before."""
    world = build_world("short", "bfloat16")
    court = open_court(tmp_path / "run", world, model={"dtype": "bfloat16"})
    assert isinstance(court.validator.evidence, EvidenceLog)
    court.validator.evidence.add("cheat", 0, 99, Weighed(dict.fromkeys(BETS, BAN_NATS + 9), 100))
    lease = court.hand_in("cheat")
    court.judge()
    path = court.evidence(lease)
    assert read_bundle(path).finding.check == ROUNDING
    agrees, text = replayed(path)
    assert not agrees
    assert "dropped for what other files of its node showed, which a bundle does not hold" in text
    weighed = Weighed({**dict.fromkeys(BETS, 0.0), NOT_SHOWN: 12.0}, 100)
    beside = finding_of(weighed)
    assert beside is not None
    agrees, text = replayed(edited(path, lambda tree: tree.update(finding=asdict(beside))))
    assert not agrees
    assert "compared with the version before its own, which a bundle does not hold" in text
    assert "the rejection does not hold" not in text


def test_a_file_that_was_dropped_and_shows_enough_for_blame_is_what_the_verdict_says(tmp_path: Path) -> None:
    """Blame takes as much against the node, whose earlier files may speak for it."""
    court = open_court(tmp_path / "run", build_world("short", "bfloat16"), model={"dtype": "bfloat16"})
    path = judged(court, "int4")
    only_dropped = finding_of(Weighed(dict.fromkeys(BETS, BAN_NATS + 1), 100), Account())
    assert only_dropped is not None
    assert only_dropped.check == ROUNDING
    agrees, text = replayed(edited(path, lambda tree: tree.update(finding=asdict(only_dropped))))
    assert agrees
    assert "enough for blame, which takes as much against the node; it was only dropped" in text


def test_an_accusation_of_another_sample_than_the_guilty_one_is_no_agreement(court: Court) -> None:
    path = judged(court, "false_reward")
    guilty = read_bundle(path).finding.sample
    assert guilty is not None
    moved = edited(path, lambda tree: tree["finding"].update(sample=guilty + 1))
    agrees, text = replayed(moved)
    assert not agrees
    assert "the verdict names another rule" in text


def test_a_bundle_with_the_reward_or_the_tokens_made_right_is_refuted(court: Court) -> None:
    honest = court.honest("cheat")
    reward = honest.rollouts[2].reward
    assert reward is not None
    lease = court.hand_in_submission(with_sample(honest, 2, reward=reward + 0.5))
    court.judge()
    path = court.evidence(lease)
    assert replayed(path)[0]
    assert not replayed(edited(path, lambda tree: tree["rollouts"][2].update(reward=reward)))[0]
    honest = court.honest("cheat")
    number, sample = next((n, r) for n, r in enumerate(honest.rollouts[:8]) if len(r.completion) > 3)
    wrong = [(sample.completion[0] + 1 - 5) % 200 + 5, *sample.completion[1:]]
    lie = with_sample(honest, number, completion=wrong)
    answers = [(gym().task("train", r.task), court.world.workers.decode(r.completion)) for r in lie.rollouts]
    scores = InProcess(gym()).scores("train", answers)
    lie = replace(lie, rollouts=[replace(r, reward=s.reward) for r, s in zip(lie.rollouts, scores, strict=True)])
    advantages = court.world.maker().advantages([s.reward for s in scores])
    lie = replace(lie, rollouts=[replace(r, advantage=a) for r, a in zip(lie.rollouts, advantages, strict=True)])
    lease = court.hand_in_submission(lie)
    court.judge()
    path = court.evidence(lease)
    assert read_bundle(path).finding.check == "sampling"
    assert replayed(path)[0]

    def fix(tree: dict[str, Any]) -> None:
        for row, r in zip(tree["rollouts"], honest.rollouts[:8], strict=True):
            row.update(completion=r.completion.tolist(), reward=r.reward, advantage=r.advantage)

    assert not replayed(edited(path, fix))[0]


def test_a_version_that_is_gone_is_said_and_a_kept_one_outlives_it(tmp_path: Path, world: World) -> None:
    court = open_court(tmp_path / "run", world)
    path = judged(court, "best_of_n")
    court.run.channel().retract(0)
    assert replayed(path)[0], "the evidence keeps the version that it rests on"
    shutil.rmtree(path.parent / "versions")
    with pytest.raises(WeightsError, match=r"version 1 \(root [0-9a-f]{12}\) is no longer here"):
        replayed(path)
    assert not replayed(edited(path, lambda tree: tree["finding"].update(check="tasks")))[0], "needs no weights"
    with court.run.channel().publish(1) as staging:  # other content under the same number
        (staging / "model.safetensors").write_bytes(b"x")
    with pytest.raises(WeightsError, match="is no longer here"):
        replayed(path)
    shutil.rmtree(court.run.base_model)
    with pytest.raises(WeightsError, match="the run's base model is missing"):
        replayed(path)


def test_a_version_whose_files_were_changed_is_not_believed(tmp_path: Path, world: World) -> None:
    court = open_court(tmp_path / "run", world)
    path = judged(court, "best_of_n")
    for file in court.run.path.rglob("v000001/model.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.unlink()
        file.write_bytes(data)
    with pytest.raises(WeightsError, match="is no longer here"):
        replayed(path)


def test_keeping_a_version_twice_is_keeping_it_once(court: Court) -> None:
    folder = court.run.path / "elsewhere"
    weights = court.run.channel().fetch(court.version())
    for _ in range(2):
        keep_version(folder, weights, court.version())
    kept = folder / "versions" / court.version().root[:16] / "v000001"
    assert sorted(f.name for f in kept.iterdir()) == sorted(f.name for f in weights.iterdir())


def test_evidence_goes_when_nobody_can_challenge_its_step_any_more_however_much_there_is(tmp_path: Path) -> None:
    for step in range(20):
        for number in range(50 if step == 19 else 1):
            (tmp_path / f"step-{step:06d}-{number:04d}.json").write_bytes(b"damaged, for all that is known")
    prune_evidence(tmp_path, before=4)
    assert len(list(tmp_path.glob("*.json"))) == 69, "old ones go some steps at a time"
    prune_evidence(tmp_path, before=8)
    left = sorted(path.name for path in tmp_path.glob("*.json"))
    assert (len(left), left[0]) == (61, "step-000008-0000.json")


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_no_version_goes_that_a_challenge_can_be_about_and_few_others_stay(tmp_path: Path, spare: int) -> None:
    for number in range(20):
        (tmp_path / VERSIONS / f"{number:016x}" / f"v{number:06d}").mkdir(parents=True)
    for window in (7, 7, 9):
        prune_versions(tmp_path, window, spare)
        left = sorted(path.name for path in (tmp_path / VERSIONS).glob("*/*"))
        assert left == [f"v{n:06d}" for n in range(window - spare, 20)]


def test_bundles_of_one_version_share_one_copy_of_it(court: Court) -> None:
    for attack in ("best_of_n", "false_logprobs"):
        judged(court, attack)
    kept = list((court.run.path / "evidence" / VERSIONS).glob("*/*"))
    assert [path.name for path in kept] == ["v000001"]


def test_a_file_that_nobody_is_blamed_for_keeps_no_version(tmp_path: Path, world: World) -> None:
    court = open_court(tmp_path / "run", world, audit={"thresholds": {"logprob": 0.9}})
    honest = court.honest("near")
    sample = honest.rollouts[3]
    claimed = sample.logprobs.copy()
    claimed[0] -= 1.2
    lease = court.hand_in_submission(with_sample(honest, 3, logprobs=claimed))
    court.judge()
    assert read_bundle(court.evidence(lease)).finding.check == "margin"
    assert not (court.run.path / "evidence" / VERSIONS).exists()


def test_a_version_that_is_gone_is_fetched_again_and_believed_by_its_hash(tmp_path: Path, world: World) -> None:
    court = open_court(tmp_path / "run", world)
    path = judged(court, "best_of_n")
    archive, other = tmp_path / "archive", tmp_path / "other"
    shutil.copytree(court.run.path / "weights" / "v000001", archive)
    shutil.copytree(court.run.base_model, other)
    shutil.rmtree(court.run.path / "weights" / "v000001")
    shutil.rmtree(court.run.path / "evidence" / VERSIONS)
    with pytest.raises(WeightsError, match=r"Fetch it .*shoal fetch URL --version 1 .*--weights"):
        replayed(path)
    with pytest.raises(WeightsError, match="is not version 1 of this bundle"):
        replayed(path, other)
    with pytest.raises(WeightsError, match="is no longer here"):
        find_version(Version(1, read_bundle(path).root), path.parent)
    agrees, text = replayed(path, archive)
    assert agrees, text
    assert replayed(path)[0], "it stays"


def test_evidence_beyond_its_budget_says_what_was_found_and_holds_no_samples(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    court = open_court(tmp_path / "run", world)
    first = judged(court, "false_reward")
    monkeypatch.setattr(evidence, "MAX_BYTES_OF_BUNDLES", 1)
    second = judged(court, "false_reward")
    assert read_bundle(first).rollouts
    assert (read_bundle(second).rollouts, read_bundle(second).finding.check) == ([], "rewards")
    with pytest.raises(RolloutError, match="says what was found but holds no samples"):
        replayed(second)


def test_findings_that_no_bundle_can_show_are_said(court: Court) -> None:
    path = judged(court, "truncated")
    with pytest.raises(RolloutError, match="whether it had been published at that time"):
        replayed(edited(judged(court, "false_reward"), lambda tree: tree["finding"].update(check="version")))
    with pytest.raises(RolloutError, match="had no lease"):
        replayed(edited(path, lambda tree: tree.update(lease=None)))
    with pytest.raises(RolloutError, match="does not contain the file"):
        replayed(edited(path, lambda tree: tree.update(file=None)))


def test_an_empty_file_is_in_its_bundle(court: Court) -> None:
    lease = court.lease("cheat")
    court.store.put(lease, b"")
    court.judge()
    assert read_bundle(court.evidence(lease)).file == b""
    assert replayed(court.evidence(lease))[0]


def test_a_bundle_does_not_say_where_files_are_written(court: Court, tmp_path: Path) -> None:
    target = tmp_path / "written"
    path = edited(judged(court, "truncated"), lambda tree: tree["finding"].update(claimed=str(target)))
    assert replayed(path)[0]
    assert not target.exists()
    path = edited(judged(court, "best_of_n"), lambda tree: tree.update(root="../../../../.."))
    with pytest.raises(RolloutError, match="is not a valid hash"):
        replayed(path)


def put(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets a place deep in a tree."""

    def change(tree: Any) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        put("format", value=1),
        put("format", value=3),
        put("format", value=None),
        put("config", value={}),
        put("config", "steps", value="many"),
        put("finding", value=None),
        put("finding", value={"check": "rewards"}),
        put("lease", value={"run": "x"}),
        put("lease", value=[]),
        put("lease", value=None),
        put("version", value="one"),
        put("version", value=None),
        put("root", value="zz"),
        put("first", value="first"),
        put("first", value=3),
        put("first", value=10**30),
        put("first", value=-8),
        put("rollouts", value=[]),
        put("rollouts", value=None),
        put("rollouts", 0, value=7),
        put("rollouts", 0, "proof", value="?"),
        put("rollouts", 0, "completion", value=[[]]),
        put("rollouts", 0, "completion", value=[10**6]),
        put("rollouts", 0, "completion", value=[-1]),
        put("rollouts", 0, "completion", value=[]),
        put("rollouts", 0, "prompt", value=[10**30]),
        put("rollouts", 0, "prompt", value=[5] * 1000),
        put("rollouts", 0, "logprobs", value=[]),
        put("rollouts", 0, "logprobs", value=["x"]),
        put("rollouts", 0, "reward", value="x"),
        put("rollouts", 0, "group", value=5),
        put("rollouts", 0, "finish", value="never"),
        put("file", value=17),
    ],
)
def test_a_bundle_that_was_tampered_with_is_a_clear_error(
    court: Court, change: Callable[[dict[str, Any]], None], sampled: Path
) -> None:
    with pytest.raises((RolloutError, ConfigError)) as raised:
        replayed(edited(sampled, change))
    assert str(raised.value)


@pytest.fixture(scope="module")
def sampled(court: Court) -> Path:
    return judged(court, "best_of_n")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"null", b'"text"', b"{}", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_bundle_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bundle.json"
    path.write_bytes(content)
    with pytest.raises(RolloutError, match="not an evidence bundle"):
        replayed(path)


def test_a_bundle_cut_anywhere_is_a_clear_error(sampled: Path, tmp_path: Path) -> None:
    data = sampled.read_bytes()
    path = tmp_path / "bundle.json"
    for end in range(0, len(data) - 1, max(1, len(data) // 50)):
        path.write_bytes(data[:end])
        with pytest.raises(RolloutError, match="not an evidence bundle"):
            read_bundle(path)


def test_the_command_line_says_the_same_and_its_exit_code_too(court: Court, sampled: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    good = runner.invoke(app, ["replay", str(sampled)])
    assert good.exit_code == 0, good.output
    lie = edited(sampled, lambda tree: tree["finding"].update(check="tasks"))
    assert runner.invoke(app, ["replay", str(lie)]).exit_code == 1
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert isinstance(runner.invoke(app, ["replay", str(broken)]).exception, ShoalError)
    assert isinstance(runner.invoke(app, ["replay", str(tmp_path / "none")]).exception, ConfigError)


def test_in_a_process_of_its_own_with_a_scorer_of_its_own(sampled: Path) -> None:
    command = [sys.executable, "-m", "shoal", "replay", str(sampled)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "the same rule is broken at the same place" in " ".join(found.stdout.split())


def test_a_large_file_is_not_kept(court: Court, tmp_path: Path) -> None:
    path = tmp_path / "0000.parquet"
    path.write_bytes(bytes(2 << 20))
    bundle = bundle_of(court.run.config, path, court.lease("cheat"), None, Finding("format", "rule", "a", "b"))
    assert bundle.file is None
    path.write_bytes(b"small")
    small = bundle_of(court.run.config, path, court.lease("cheat"), None, Finding("format", "rule", "a", "b"))
    assert small.file == b"small"
