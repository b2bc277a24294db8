"""A run with adapters: versions of kilobytes, all merge the same weights, and the run ends in an ordinary model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from typer.testing import CliRunner

from shoal.cli import app
from shoal.client.weight_source import CastChannel
from shoal.errors import ConfigError, ModelError
from shoal.models.adapter_files import FILES, SETTINGS
from shoal.models.load import load
from shoal.models.version_reader import VersionReader
from shoal.models.weights import read_weights
from shoal.rundir import RunDir
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.directory_follower import Follower
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.origin.versions import Versions
from shoal.shardcast.serve.server import Server, serving
from shoal.telemetry.metrics import MetricsWriter
from shoal.train.export import export_version
from tests.support.architectures import plain_model
from tests.support.origin_and_relays import KEY, RUN
from tests.support.roles_in_process import entries, make_config, make_run, make_worker, train, working

LORA = {"lora": {"rank": 2, "alpha": 8.0}, "lr": 1e-2, "loss": {"kl_coef": 0.001}}


@pytest.fixture(scope="module")
def run(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Two steps of a run that trains adapters."""
    made = make_run(tmp_path_factory.mktemp("lora") / "run", make_config(tiny_dir, steps=2, train=LORA))
    with working(made, make_worker(made)):
        train(made)
    return made


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_versions_are_adapters_and_checkpoints_hold_nothing_else(run: RunDir) -> None:
    channel = run.channel()
    base, first, second = (run.path / "weights" / f"v{number:06d}" for number in range(3))
    assert channel.numbers() == [0, 1, 2]
    assert {path.name for path in first.iterdir()} == {*FILES, ".manifest.json"}
    assert 10 * size(first) < size(base)
    assert 3 * size(run.checkpoints / "step-000002") < size(base)
    reader = VersionReader(channel, "float32")
    before, after, last = (reader.read(folder) for folder in (base, first, second))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "_proj" in name}
    assert any(not torch.equal(after[name], last[name]) for name in changed)


def test_the_trainer_computes_with_adapters_what_workers_compute_with_merged_weights(run: RunDir) -> None:
    steps = entries(run, "trainer", "step")
    assert [entry["turned_down"] for entry in steps] == [0, 0]
    assert all(entry["mismatch_max"] < 1e-4 for entry in steps if entry["mismatch_max"] is not None)
    assert steps[0]["kl"] == 0, "before the first step the policy is its base"
    assert steps[1]["kl"] > 0


def test_the_run_ends_in_the_merged_model_and_export_writes_the_same(run: RunDir, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(run.path), "--out", str(tmp_path / "merged")])
    assert (result.exit_code, "model of version 2" in result.output) == (0, True), result.output
    version = run.path / "weights" / "v000002"
    expected = VersionReader(run.channel(), "float32").read(version)
    for folder in (run.path / "model", tmp_path / "merged"):
        assert all(torch.equal(tensor, expected[name]) for name, tensor in load(folder).weights().items())
    export_version(version, tmp_path / "adapter", None, adapter=True)
    ids = torch.arange(3, 30).unsqueeze(0)
    theirs = PeftModel.from_pretrained(plain_model(run.base_model), str(tmp_path / "adapter"))
    with torch.no_grad():
        ours = plain_model(tmp_path / "merged")(input_ids=ids).logits
        assert torch.allclose(theirs(input_ids=ids).logits, ours, atol=1e-4)
        assert not torch.allclose(plain_model(run.base_model)(input_ids=ids).logits, ours, atol=1e-2)


def test_a_newcomer_gets_the_base_and_the_newest_adapter_whatever_was_pruned(run: RunDir, tmp_path: Path) -> None:
    store = Store(tmp_path / "origin")
    server = Server(store)
    with (
        Publisher(store, KEY, RUN, keep=1) as publisher,
        serving(server),
        MetricsWriter(tmp_path / "metrics.jsonl") as metrics,
    ):
        Follower(run.path / "weights", Versions(publisher)).sync()
        assert sorted(entry.number for entry in publisher.entries) == [0, 2]
        url = f"http://127.0.0.1:{server.port}"
        with CastChannel(tmp_path / "newcomer", [url], KEY.address, RUN, "newcomer", 20.0, metrics) as channel:
            newest = channel.version(2)
            assert newest is not None
            found = VersionReader(channel, "float32").read(channel.fetch(newest))
            expected = VersionReader(run.channel(), "float32").read(run.path / "weights" / "v000002")
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_trainer_that_resumes_goes_on_with_the_adapters_of_its_checkpoint(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "weights" / "v000002")
    again = make_run(tmp_path / "again", run.config)
    train(again)
    second = again.channel().version(2)
    assert second is not None
    assert second == run.channel().version(2), "published again from the checkpoint, the same to the bit"


def test_a_version_whose_adapter_is_of_another_base_stops_the_worker_by_name(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "other")
    weights = tmp_path / "other" / "weights"
    shutil.rmtree(weights / "v000000")
    other = RunDir(tmp_path / "other", run.config)
    with other.channel().publish(0) as staging:
        shutil.copytree(run.base_model, staging, dirs_exist_ok=True)
        config = json.loads((staging / "config.json").read_text())
        (staging / "config.json").write_text(json.dumps(config | {"note": "other"}))
    worker = make_worker(other)
    before = {name: tensor.clone() for name, tensor in worker.maker.policy.weights().items()}
    newest = worker.channel.latest()
    assert newest is not None
    with pytest.raises(ModelError, match=r"v000002: is an adapter of base \w{12}, this run.s version 0 has root"):
        worker.load(newest)
    assert all(torch.equal(tensor, before[name]) for name, tensor in worker.maker.policy.weights().items())


def test_targets_that_the_base_does_not_have_stop_a_run_before_it_begins(tiny_dir: Path, tmp_path: Path) -> None:
    config = make_config(tiny_dir, train={"lora": {"targets": ["c_attn"]}})
    with pytest.raises(ModelError, match=r"train\.lora\.targets: LlamaForCausalLM has no linear layer .c_attn.;"):
        make_run(tmp_path / "run", config)
    assert not (tmp_path / "run" / "run.json").exists()
    for bad in ({"rank": 0}, {"rank": 2, "alpha": 0.0}, {"layers": 2}):
        with pytest.raises(ConfigError, match=r"train\.lora\."):
            make_config(tiny_dir, train={"lora": bad})


def test_what_cannot_be_exported_is_refused_by_name(run: RunDir, tmp_path: Path) -> None:
    for target, number, why in (
        (run.path, 7, r"version 7 is not there; there are \[0, 1, 2\]"),
        (run.base_model, None, r"version 0 is not an adapter \(it is the base model\); leave --adapter out"),
        (run.path / "weights" / "v000001", 1, "--version goes with a run's directory; this is version 1 already"),
        (tmp_path, None, "neither a run's directory nor one of its versions"),
    ):
        with pytest.raises(Exception, match=why):
            export_version(target, tmp_path / "out", number, adapter=True)
    with pytest.raises(ConfigError, match=r"exists; give --out a directory that does not"):
        export_version(run.path, tmp_path, None, adapter=False)
    assert not (tmp_path / "out").exists()
    assert (run.path / "weights" / "v000001" / SETTINGS).is_file()


def test_a_whole_version_of_a_run_is_read_as_before(run: RunDir) -> None:
    reader = VersionReader(run.channel(), "float32")
    weights = read_weights(run.base_model, "float32")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in reader.read(run.base_model).items())
