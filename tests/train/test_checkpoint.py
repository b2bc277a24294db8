"""Checkpoints: training goes on from one as if it had never stopped, and a damaged one is passed over."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shoal.errors import ModelError
from shoal.files import STAGING
from shoal.models.attention import Packed
from shoal.models.load import Policy, load, trainable
from shoal.models.weights import WEIGHTS
from shoal.train.checkpoint import STATE, Progress, file_name, load_checkpoint, save_checkpoint
from shoal.train.learner import Learner, alone
from shoal.train.optimizer import AdamW
from tests.support.small_disk import run_on_small_disk

SAVE_FOREVER = """
import itertools, sys, torch
from pathlib import Path
from shoal.models.load import load, trainable
from shoal.train.checkpoint import Progress, save_checkpoint
from shoal.train.learner import alone
from shoal.train.optimizer import AdamW
torch.set_num_threads(1)
policy = load(Path(sys.argv[1]))
parameters = [p for _, p in trainable(policy.model)]
learner = alone(policy, None, AdamW(parameters, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01))
for version in itertools.count(1):
    save_checkpoint(Path(sys.argv[2]), learner, Progress(version, 0, {version - 1: {0: version}}), keep=2)
"""


MODEL, OPTIMIZER = file_name("model", 0, 1), file_name("optimizer", 0, 1)


def make_learner(policy: Policy) -> Learner:
    parameters = [p for _, p in trainable(policy.model)]
    return alone(policy, None, AdamW(parameters, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.01))


def train_once(learner: Learner, seed: int) -> None:
    """One optimizer step on tokens that follow from the seed."""
    policy, optimizer = learner.policy, learner.optimizer
    ids_T = torch.randint(0, policy.vocab, (24,), generator=torch.Generator().manual_seed(seed))
    packed = Packed([24])
    hidden_TD = policy.hidden(ids_T.unsqueeze(0), packed.positions_1T, packed)[0]
    loss = torch.nn.functional.cross_entropy(policy.head(hidden_TD[:-1]), ids_T[1:])
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.weights().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def save(path: Path, policy: Policy, version: int, keep: int = 2) -> dict[str, torch.Tensor]:
    """A checkpoint after one more optimizer step; gives its weights."""
    learner = make_learner(policy)
    train_once(learner, version)
    save_checkpoint(path, learner, Progress(version, 0, {version - 1: {0: 0, 1: 0}}), keep)
    return weights_of(policy)


def test_from_a_checkpoint_the_next_optimizer_step_is_the_same_bit_for_bit(
    tmp_path: Path, tiny_dir: Path, tiny_policy: Policy
) -> None:
    learner = make_learner(tiny_policy)
    for seed in range(3):
        train_once(learner, seed)
    save_checkpoint(tmp_path, learner, Progress(3, 1, {1: {0: 0, 2: 1}, 2: {5: 2}}), keep=2)
    for seed in (3, 4):
        train_once(learner, seed)

    resumed = load(tiny_dir)
    again = make_learner(resumed)
    progress, damaged = load_checkpoint(tmp_path, again)
    assert (progress, damaged) == (Progress(3, 1, {1: {0: 0, 2: 1}, 2: {5: 2}}), [])
    for seed in (3, 4):
        train_once(again, seed)
    assert same(weights_of(resumed), weights_of(tiny_policy))


def test_the_optimizers_moments_make_a_difference(tmp_path: Path, tiny_dir: Path, tiny_policy: Policy) -> None:
    """Guards the test above: with the weights alone the next step would be another."""
    learner = make_learner(tiny_policy)
    for seed in range(3):
        train_once(learner, seed)
    resumed = load(tiny_dir)
    resumed.set_weights(weights_of(tiny_policy), "copy")
    train_once(learner, 3)
    train_once(make_learner(resumed), 3)
    assert not same(weights_of(resumed), weights_of(tiny_policy))


def test_a_checkpoint_before_the_first_optimizer_step_can_be_loaded(tmp_path: Path, tiny_policy: Policy) -> None:
    # As when the very first step had no finite gradient.
    save_checkpoint(tmp_path, make_learner(tiny_policy), Progress(1, 1, {0: {0: 0}}), keep=2)
    learner = make_learner(tiny_policy)
    assert load_checkpoint(tmp_path, learner) == (Progress(1, 1, {0: {0: 0}}), [])
    train_once(learner, 0)


def test_without_checkpoints_there_is_nothing_to_go_on_from(tmp_path: Path, tiny_policy: Policy) -> None:
    assert load_checkpoint(tmp_path / "nowhere", make_learner(tiny_policy)) == (None, [])


def test_the_newest_checkpoints_are_kept(tmp_path: Path, tiny_policy: Policy) -> None:
    for version in (1, 2, 9, 10):
        save(tmp_path, tiny_policy, version)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-000009", "step-000010"]


def test_foreign_folders_are_neither_counted_nor_touched(tmp_path: Path, tiny_policy: Policy) -> None:
    foreign = ["step-²", "step-1x", "step-7", "step-999998", "step-999999"]
    for name in foreign:
        (tmp_path / name).mkdir()
    (tmp_path / "step-999998" / "notes").write_text("mine")
    assert load_checkpoint(tmp_path, make_learner(tiny_policy))[0] is None
    for version in (1, 2, 3):
        save(tmp_path, tiny_policy, version)
    expected = ["step-000002", "step-000003", *foreign]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == sorted(expected)
    shutil.copytree(tmp_path / "step-000003", tmp_path / "step-000900")
    progress, _ = load_checkpoint(tmp_path, make_learner(tiny_policy))
    assert progress is not None
    assert progress.version == 3


def test_a_file_in_the_place_of_a_checkpoint_is_replaced(tmp_path: Path, tiny_policy: Policy) -> None:
    (tmp_path / "step-000001").write_text("foreign")
    save(tmp_path, tiny_policy, 1)
    progress, _ = load_checkpoint(tmp_path, make_learner(tiny_policy))
    assert progress is not None


def test_a_checkpoint_is_safetensors_and_json_only(tmp_path: Path, tiny_policy: Policy) -> None:
    save(tmp_path, tiny_policy, 1)
    files = {file.name for file in (tmp_path / "step-000001").iterdir()}
    assert files == {MODEL, OPTIMIZER, STATE}
    assert load_file(tmp_path / "step-000001" / MODEL).keys() == tiny_policy.weights().keys()


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def spoil(folder: Path, how: str) -> None:
    match how:
        case "truncated weights":
            data = (folder / MODEL).read_bytes()
            (folder / MODEL).write_bytes(data[: len(data) // 2])
        case "altered weights":
            flip(folder / MODEL, -1)
        case "altered moments":
            flip(folder / OPTIMIZER, -1000)
        case "missing weights":
            (folder / MODEL).unlink()
        case "missing moments":
            (folder / OPTIMIZER).unlink()
        case "missing state":
            (folder / STATE).unlink()
        case "empty":
            shutil.rmtree(folder)
            folder.mkdir()
        case "state without hashes":
            state = json.loads((folder / STATE).read_text())
            del state["sha256"]
            (folder / STATE).write_text(json.dumps(state))
        case text:
            (folder / STATE).write_text(text)


@pytest.mark.parametrize(
    "how",
    [
        "truncated weights",
        "altered weights",
        "altered moments",
        "missing weights",
        "missing moments",
        "missing state",
        "empty",
        "state without hashes",
        "",
        "{",
        "[]",
        "null",
        '{"version": 2, "bad_steps": 0, "used": [], "sha256": {}}',
        '{"version": 2, "bad_steps": 0, "used": {"1": [0, 1]}, "sha256": {}}',
    ],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_older_one_with_a_note(
    tmp_path: Path, tiny_policy: Policy, how: str
) -> None:
    older = save(tmp_path, tiny_policy, 1)
    save(tmp_path, tiny_policy, 2)
    spoil(tmp_path / "step-000002", how)
    progress, damaged = load_checkpoint(tmp_path, make_learner(tiny_policy))
    assert progress == Progress(1, 0, {0: {0: 0, 1: 0}})
    assert same(weights_of(tiny_policy), older)
    [note] = damaged
    assert note.startswith("checkpoint step-000002: damaged (")
    assert note.endswith("); passed over")


def test_when_all_checkpoints_are_damaged_nothing_is_trained_over(tmp_path: Path, tiny_policy: Policy) -> None:
    for version in (1, 2):
        save(tmp_path, tiny_policy, version)
        spoil(tmp_path / f"step-{version:06d}", "truncated weights")
    before = weights_of(tiny_policy)
    with pytest.raises(ModelError, match=r"none can be read: checkpoint step-000002.*step-000001.*; restore one, or"):
        load_checkpoint(tmp_path, make_learner(tiny_policy))
    assert same(weights_of(tiny_policy), before)


def test_a_damaged_checkpoint_can_be_written_again(tmp_path: Path, tiny_policy: Policy) -> None:
    save(tmp_path, tiny_policy, 1)
    save(tmp_path, tiny_policy, 2)
    spoil(tmp_path / "step-000002", "missing state")
    newest = save(tmp_path, tiny_policy, 2)
    progress, damaged = load_checkpoint(tmp_path, make_learner(tiny_policy))
    assert (progress, damaged) == (Progress(2, 0, {1: {0: 0, 1: 0}}), [])
    assert same(weights_of(tiny_policy), newest)


def test_what_a_killed_trainer_left_half_done_is_cleared_away(tmp_path: Path, tiny_policy: Policy) -> None:
    (tmp_path / f"{STAGING}abc").mkdir(parents=True)
    (tmp_path / f"{STAGING}abc" / WEIGHTS).write_bytes(b"half")
    assert load_checkpoint(tmp_path, make_learner(tiny_policy)) == (None, [])
    save(tmp_path, tiny_policy, 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000001"]


def test_a_checkpoint_of_another_model_is_an_error_and_not_passed_over(tmp_path: Path, tiny_policy: Policy) -> None:
    save(tmp_path, tiny_policy, 1)
    folder = tmp_path / "step-000001"
    foreign = {"other.weight": torch.zeros(2)}
    save_file(foreign, folder / MODEL)
    state = json.loads((folder / STATE).read_text())
    (folder / STATE).write_text(json.dumps(state | {"sha256": {}}))
    with pytest.raises(ModelError, match=r"step-000001: lacks .*it is of another model"):
        load_checkpoint(tmp_path, make_learner(tiny_policy))


@pytest.mark.timeout(600)
def test_a_trainer_killed_while_it_saves_leaves_a_whole_checkpoint(tmp_path: Path, tiny_dir: Path) -> None:
    folder = tmp_path / "checkpoints"
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOREVER, str(tiny_dir), str(folder)], stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 300
        while not (folder / "step-000004").exists() and time.monotonic() < deadline:
            assert saver.poll() is None
            time.sleep(0.001)
        time.sleep(0.013)
    finally:
        saver.send_signal(signal.SIGKILL)
        saver.wait()
    policy = load(tiny_dir)
    progress, damaged = load_checkpoint(folder, make_learner(policy))
    assert progress is not None
    assert progress.version >= 4
    assert progress.used == {progress.version - 1: {0: progress.version}}
    assert damaged == []


def test_a_full_disk_costs_no_checkpoint(tmp_path: Path, tiny_dir: Path) -> None:
    code = """
import sys, torch
from pathlib import Path
from shoal.errors import StorageError
from shoal.models.load import load, trainable
from shoal.train.checkpoint import Progress, load_checkpoint, save_checkpoint
from shoal.train.learner import alone
from shoal.train.optimizer import AdamW
torch.set_num_threads(1)
disk, policy = Path(sys.argv[1]), load(Path(sys.argv[2]))
parameters = [p for _, p in trainable(policy.model)]
learner = alone(policy, None, AdamW(parameters, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01))
save_checkpoint(disk, learner, Progress(1, 0, {}), keep=2)
try:
    for version in (2, 3, 4, 5):
        save_checkpoint(disk, learner, Progress(version, 0, {}), keep=9)
except StorageError as error:
    print(error)
print(load_checkpoint(disk, learner))
print(sorted(entry.name for entry in disk.iterdir()))
"""
    size = (tiny_dir / WEIGHTS).stat().st_size // 1024
    said, loaded, left = run_on_small_disk(tmp_path / "disk", 2 * size + 100, code, str(tiny_dir)).splitlines()
    assert said.startswith(f"{tmp_path / 'disk' / 'step-000003'}: the disk is full")
    assert loaded == "(Progress(version=2, bad_steps=0, used={}), [])"
    assert left == "['step-000001', 'step-000002']"
