"""What vLLM's workers do for us never raises, which would end the engine; `tests/vllm/test_engine.py` has real ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.generate.vllm import worker_extension
from shoal.generate.vllm.worker_extension import WorkerExtension
from tests.support.model_and_checks import model_dir


class Worker(WorkerExtension):
    """As much of vLLM's worker as is used: only it has vLLM's config while weights are loaded."""

    rank = 0

    def __init__(self, model: Any) -> None:
        self.model_runner = SimpleNamespace(get_model=lambda: model)
        self.loaded: list[str] = []

    def reload_weights(self, *, weights_iterator: Any) -> None:
        self.loaded += [name for name, _ in weights_iterator]


@pytest.fixture
def folder() -> Path:
    return model_dir("long")


def test_a_model_that_cannot_be_compared_is_an_error_that_names_the_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*_: object) -> str:
        raise AttributeError("'Model' object has no attribute 'logits_processor'")

    monkeypatch.setattr(worker_extension, "first_difference", compare)
    said = Worker(None).shoal_check(str(folder), "float32", "version 3")
    assert said.startswith("version 3: vLLM's weights cannot be compared with it (AttributeError: 'Model' object")


def test_versions_are_loaded_through_the_worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_extension, "first_difference", lambda *_: None)
    monkeypatch.setattr(worker_extension, "pack_heads", lambda _: None)
    worker = Worker(None)
    assert worker.shoal_load(str(folder), "float32", "version 3") == ""
    assert "model.norm.weight" in worker.loaded
