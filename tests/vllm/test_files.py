"""Files that were generated with vLLM pass the unchanged validator; a worker with stale weights takes no lease."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")

from shoal.config import LoraConfig
from shoal.errors import ModelError
from shoal.generate.submission_builder import Maker
from shoal.generate.vllm.death_watch import beginning
from shoal.generate.vllm.engine import VllmEngine
from shoal.models.adapter_files import Merged, write_adapter
from shoal.models.base import write_base_version
from shoal.models.load import load, outline
from shoal.models.lora import adapter_of, attach
from shoal.models.merge import Base, MergedWeights
from shoal.models.version_reader import VersionReader
from shoal.models.weights import write_weights
from shoal.protocol.version_directory import DirectoryChannel
from shoal.tasks.source import InProcess
from tests.support.in_flight_run import (
    assert_files_of_several_versions_pass,
    in_flight_run,
    version_comes_in_flight,
)
from tests.support.memory_store import memory_store
from tests.support.model_and_checks import VERSIONS, World, build_world, gym, lease_of, model_dir, weights
from tests.support.roles_in_process import make_config, make_run, make_worker, train, working
from tests.vllm.conftest import settings_of

pytestmark = pytest.mark.xdist_group("engine")


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """The version that the judges of the small world have."""
    return written(tmp_path / "v1", weights("long")[1])


def written(folder: Path, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    policy = load(model_dir("long"))
    policy.model.config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    write_weights(folder, tensors)
    return folder


def maker_of(world: World, engine: Any) -> Maker:
    return Maker(world.config, outline(model_dir("long")), engine, gym(), InProcess(gym()))


def rejected(world: World, engine: Any, files: int) -> list[str]:
    maker = maker_of(world, engine)
    found = []
    for number in range(files):
        lease = lease_of(world, number)
        finding = world.verdict(maker.file(lease, VERSIONS[1])[1], lease)
        found += [] if finding is None else [str(finding)]
    return found


def test_files_pass_the_unchanged_validator(engine: VllmEngine, version_1: Path, tiny: Path) -> None:
    world = build_world("long", group_size=8)
    engine.load(version_1, "version 1")
    try:
        assert rejected(world, engine, 6) == []
    finally:
        engine.load(tiny, "version 0")


def test_files_of_another_version_do_not(engine: VllmEngine) -> None:
    """Or else the test above would prove nothing."""
    assert len(rejected(build_world("long"), engine, 2)) == 2


def test_an_adapter_is_merged_to_the_bit(engine: VllmEngine, tiny: Path, tmp_path: Path) -> None:
    policy, config = load(tiny), LoraConfig(rank=4, alpha=6.0)
    attach(policy.model, config, 7)
    for name, parameter in policy.model.named_parameters():
        if name.endswith("lora_B"):
            parameter.data += 0.02
    channel = DirectoryChannel(tmp_path / "weights", 5)
    with channel.publish(0) as staging:
        write_base_version(tiny, staging, "float32")
    first = channel.version(0)
    assert first is not None
    base = Base(first.root, load(tiny).weights())
    adapter = adapter_of(policy.trained_weights(), config)
    with channel.publish(1) as staging:
        root = MergedWeights(base, adapter, "version 1").root()
        write_adapter(staging, adapter, Merged(base=first.root, dtype="float32", weights=root))
    second = channel.version(1)
    assert second is not None
    world = build_world("long")
    reader = VersionReader(channel, "float32")
    world.checks.policy.set_weights(reader.read(channel.fetch(second)), "version 1")
    engine._reader = reader.read
    engine.load(channel.fetch(second), "version 1")
    try:
        assert rejected(world, engine, 2) == []
    finally:
        engine.load(tiny, "version 0")


@pytest.fixture(scope="module")
def two_devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    folder = written(
        tmp_path_factory.mktemp("tp") / "v1", {name: w.bfloat16() for name, w in weights("long")[1].items()}
    )
    settings = settings_of(held="bfloat16", dtype="bfloat16", tensor_parallel=2)
    found = VllmEngine(
        folder, outline(model_dir("long")), settings, origin="version 1", reader=lambda _: {}, say=lambda _: None
    )
    yield found
    found.close()


def test_bfloat16_on_two_devices_is_accepted_under_the_evidence_rules(two_devices: VllmEngine) -> None:
    assert rejected(build_world("long", "bfloat16", group_size=8), two_devices, 4) == []


@pytest.mark.parametrize("stale", ["self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"])
def test_one_stale_matrix_is_refused_on_two_devices(two_devices: VllmEngine, tmp_path: Path, stale: str) -> None:
    before, after = (
        written(tmp_path / f"v{number}", {name: w.bfloat16() for name, w in tensors.items()})
        for number, tensors in enumerate(weights("long"))
    )
    name = f"model.layers.1.{stale}.weight"
    two_devices._engine.collective_rpc("plant_stale_matrix", args=(name, str(after), "bfloat16"))
    try:
        with pytest.raises(ModelError, match=rf"version 0: vLLM's fingerprint .* differs from its files at {name};"):
            two_devices.load(before, "version 0")
    finally:
        two_devices._engine.collective_rpc("plant_stale_matrix", args=("", "", ""))
        two_devices.load(after, "version 1")


def test_ranks_that_outlive_a_killed_core_are_gone_when_the_next_one_starts(two_devices: VllmEngine) -> None:
    """As those do that wait in a collective; on a GPU they hold the memory that the next engine needs."""
    world = build_world("long", "bfloat16", group_size=8)
    before = dict(two_devices._watch._processes)
    core = int(two_devices._engine.engine_core.resources.engine_manager.processes[0].pid)
    ranks = [pid for pid in before if pid != core]
    assert len(ranks) >= 2
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)
    os.kill(core, signal.SIGKILL)
    assert rejected(world, two_devices, 1) == []
    assert not any(beginning(pid) == began for pid, began in before.items())


def test_a_stale_head_is_refused_by_the_worker_itself(
    engine: VllmEngine, tiny: Path, version_1: Path, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", make_config(tiny))
    with run.channel().publish(1) as staging:
        write_base_version(version_1, staging, "float32")
    worker = make_worker(run)
    worker.maker.engine = engine
    engine._engine.collective_rpc("plant_stale_head", args=(True,))
    try:
        with pytest.raises(ModelError, match="nothing is generated with them"):
            worker.run()
    finally:
        engine._engine.collective_rpc("plant_stale_head", args=(False,))
        engine.load(tiny, "version 0")
    assert memory_store(run).waiting(0, 3) == []


def test_answers_that_go_on_with_newer_versions_pass_every_check(
    engine: VllmEngine, tiny: Path, tmp_path: Path
) -> None:
    run = in_flight_run(tmp_path / "run", tiny)
    worker = make_worker(run)
    worker.maker.engine = engine
    try:
        with version_comes_in_flight(run, worker), working(run, worker):
            train(run)
    finally:
        engine.abort()
        engine.load(tiny, "version 0")
    assert_files_of_several_versions_pass(run)
