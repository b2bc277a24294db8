"""A worker generates with the engine that its settings and its machine allow, and its profile says which."""

from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.config import RunConfig
from shoal.devices import Memory
from shoal.errors import ConfigError, MissingExtraError
from shoal.extras import is_installed
from shoal.generate.vllm.start import engine_args
from shoal.protocol.profile import Profile
from shoal.roles import worker_engine
from shoal.roles.worker_engine import chosen_engine, engine_of, vllm_settings, worker_profile

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps")


def config(**workers: Any) -> RunConfig:
    tasks = [{"source": "reasoning-gym/spell_backward"}]
    return RunConfig.model_validate({"name": "test", "steps": 1, "tasks": tasks, "workers": workers})


@pytest.mark.parametrize(
    ("wanted", "device", "installed", "meant"),
    [
        ("auto", CUDA, True, "vllm"),
        ("auto", CUDA, False, "torch"),
        ("auto", CPU, True, "torch"),
        ("auto", MPS, True, "torch"),
        ("torch", CUDA, True, "torch"),
        ("vllm", CPU, True, "vllm"),
        ("vllm", CPU, False, "vllm"),  # which is then an error that names the extra
    ],
)
def test_auto_is_vllm_where_it_is_installed_and_has_a_gpu(
    wanted: Any, device: torch.device, installed: bool, meant: str
) -> None:
    assert chosen_engine(wanted, device, installed) == meant


def test_episodes_are_generated_by_our_own_engine_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they have one turn, which `turns.tokens` ends."""
    monkeypatch.setattr(worker_engine, "is_installed", lambda _: True)
    monkeypatch.setattr(worker_engine, "require", lambda *_: None)
    tree = config(engine="auto").model_dump()
    assert engine_of(RunConfig.model_validate(tree), CUDA) == "vllm"
    episodes = tree | {"tasks": [{"source": "environment/maze"}], "turns": {"max": 1}}
    assert engine_of(RunConfig.model_validate(episodes), CUDA) == "torch"


@pytest.mark.skipif(is_installed("vllm"), reason="vLLM is installed here")
def test_vllm_that_is_not_installed_is_an_error_that_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"workers\.engine = \"vllm\": needs vllm; .*shoal-rl\[vllm\]"):
        engine_of(config(engine="vllm"), CPU)


def test_our_own_engine_does_not_pretend_to_split_a_model() -> None:
    with pytest.raises(ConfigError, match=r"workers\.tensor_parallel = 2: our own engine runs on one device"):
        engine_of(config(tensor_parallel=2, engine="torch"), CPU)


def test_the_profile_names_vllm_its_release_and_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_engine, "engine_of", lambda *_: "vllm")
    monkeypatch.setattr(worker_engine, "version", lambda _: "0.32.1")
    found = worker_profile(config(engine="vllm", tensor_parallel=4, dtype="float32"), CPU)
    assert (found.engine, found.devices, found.dtype) == ("vllm-0.32", 4, "float32")
    assert Profile.parse(found.name) == found


def test_each_worker_of_shoal_run_may_have_an_engine_of_its_own() -> None:
    workers = config(count=3, engine="vllm", engines=["torch"]).workers
    assert [workers.engine_of(number) for number in range(3)] == ["torch", "vllm", "vllm"]


@pytest.mark.parametrize(("limit", "share"), [(6 * 10**9, 0.25), (24 * 10**9, 1.0), (48 * 10**9, 1.0), (None, None)])
def test_a_limit_of_gpu_memory_is_the_share_that_vllm_may_use(
    limit: int | None, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_engine, "memory", lambda _: Memory(total=24 * 10**9, used=0, peak=0))
    arguments = engine_args(Path("model"), vllm_settings(config(engine="vllm"), CUDA, limit))
    assert arguments.get("gpu_memory_utilization") == share
    assert "kv_cache_memory_bytes" not in arguments, "vLLM would ignore the share"
