"""A user's own task file."""

from pathlib import Path

import pytest

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source

FILE = """
def task(index, longest=3):
    return {"question": f"{index} x", "answer": "x" * (index % longest + 1)}
"""


def test_options_are_arguments_of_the_task_and_leave_its_split_alone(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FILE)
    line = TaskConfig(source=f"python/{tmp_path}/own.py")
    plain, longer = (build_source([line.model_copy(update={"options": o})]) for o in ({}, {"longest": 9}))
    tasks = [(plain.task("heldout", index), longer.task("heldout", index)) for index in range(50)]
    assert [a.prompt for a, _ in tasks] == [b.prompt for _, b in tasks]
    assert max(len(a.answer or "") for a, _ in tasks) == 3
    assert max(len(b.answer or "") for _, b in tasks) == 9


def test_an_option_that_the_task_does_not_take_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FILE)
    source = build_source([TaskConfig(source=f"python/{tmp_path}/own.py", options={"shortest": 1})])
    with pytest.raises(TaskError, match="unexpected keyword argument 'shortest'"):
        source.task("train", 0)
