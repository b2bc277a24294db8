"""Every example runs as it stands, and prints what its page says."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from shoal.config_io import load_config
from shoal.tasks.build import build_source
from shoal.tasks.source import score

EXAMPLES = Path(__file__).parents[1] / "examples"
SAID = {
    "broadcast_files": ["version 1: first", "version 2: second"],
    "keep_a_ledger": ["treasury 1,000,000, stake of the node 2,000", "a changed copy: entry 2"],
    "prove_computation": [
        "1032 bytes prove 100 tokens",
        "same model:      accepted",
        "another model:   rejected: chunk 0",
    ],
    "sorting": ["the right answer earns 1.0, the question 0.0"],
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tried_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_an_example_prints_what_it_promises(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main: Callable[[], None] = load(name).main
    main()
    said = capsys.readouterr().out
    assert [text for text in SAID[name] if text not in said] == [], said


def test_the_example_of_a_task_source_is_one_that_a_run_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    source = build_source(load_config(EXAMPLES / "sorting.toml", []).tasks)
    task = source.task("train", 7)
    assert task == source.task("train", 7)
    assert task.answer is not None
    assert score(source, task, task.answer).reward == 1.0
