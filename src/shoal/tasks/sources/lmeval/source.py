"""A task of lm-evaluation-harness as a source.

Templates are rendered only on the machine that names the YAML file: a run carries the rendered prompts, in one file,
and workers need neither YAML nor Jinja.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from shoal.errors import TaskError
from shoal.extras import require
from shoal.files import parse_json
from shoal.tasks.source import Score, Split, Task
from shoal.tasks.sources.lmeval.scoring import Scoring
from shoal.tasks.sources.table import Rows

FORMAT = "shoal lm-eval 1"
RECIPES = (".yaml", ".yml")


class LmEval(Rows):
    """The tasks of such a file: those of its test split (or else its validation split), all of them held out."""

    def __init__(
        self,
        path: Path,
        *,
        name: str | None = None,
        template: str = "{question}",
        data: Any = None,
        train: bool = False,
    ) -> None:
        """`data` stands for the dataset that the file names; `train` takes its training split too."""
        task, self._scoring, rows = _rendered(path, data, train) if path.suffix in RECIPES else _read_bundle(path)
        super().__init__(name or task, rows, template=template)
        self.sha256 = hashlib.sha256((self._scoring.model_dump_json() + self.sha256).encode()).hexdigest()

    def score(self, task: Task, answer: str) -> Score:
        return self._scoring.score(answer, [str(target) for target in task.entry["targets"]])


def bundle(path: Path, data: Any = None, train: bool = False) -> tuple[str, bytes]:
    """A task's name, and all of it as one file of our own: prompts, targets and how answers are judged."""
    task, scoring, rows = _rendered(path, data, train)
    head = {"format": FORMAT, "task": task, "scoring": scoring.model_dump(mode="json")}
    return task, "".join(json.dumps(line) + "\n" for line in (head, *rows)).encode()


def _read_bundle(path: Path) -> tuple[str, Scoring, list[dict[str, Any]]]:
    try:
        head, *rows = [parse_json(line) for line in path.read_text("utf-8").splitlines()]
        if head["format"] != FORMAT:
            raise ValueError(head["format"])
        return str(head["task"]), Scoring.model_validate(head["scoring"]), rows
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TaskError(f"task source lm-eval/{path}: must be a .yaml file of lm-eval ({error!r})"[:500]) from error


def _rendered(path: Path, data: Any, train: bool) -> tuple[str, Scoring, list[dict[str, Any]]]:
    where = f"task source lm-eval/{path}"
    require("lmeval", where, TaskError)
    from shoal.tasks.sources.lmeval.docs import read_docs
    from shoal.tasks.sources.lmeval.prompts import prompts
    from shoal.tasks.sources.lmeval.recipe import read_recipe

    recipe = read_recipe(path)
    docs = read_docs(recipe, path, data)
    asked = recipe.test_split or recipe.validation_split
    if asked is None:
        raise TaskError(f"{where}: has neither test_split nor validation_split; there is nothing to ask")
    splits: list[tuple[str, Split]] = [(asked, "heldout")]
    if train and recipe.training_split:
        splits.append((recipe.training_split, "train"))
    rows = []
    for name, split in splits:
        for number, (prompt, targets) in enumerate(prompts(recipe, docs, name, where)):
            if not targets:
                raise TaskError(f"{where}: doc_to_target gives no target for row {number} of {name}")
            rows.append({"question": prompt, "answer": targets[0], "targets": targets, "split": split})
    return recipe.task, recipe.scoring, rows
