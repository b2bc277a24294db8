"""An exam as a task source: every task is held out, in the order of its file, each row one task."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.config import CodeConfig
from shoal.errors import TaskError
from shoal.tasks.prompts import posed
from shoal.tasks.source import Score, Split, Task
from shoal.tasks.sources.exams import aime, gpqa, livecodebench
from shoal.tasks.sources.table import read_table

Verdict = Callable[[Mapping[str, Any], str], float | Score]
KINDS = ("aime", "gpqa", "ifeval", "livecodebench")


class Exam:
    """Questions, and how an answer to one is judged. Nothing of it is ever trained on."""

    def __init__(self, name: str, entries: Sequence[Mapping[str, Any]], verdict: Verdict, template: str) -> None:
        if not entries:
            raise TaskError(f"task source {name}: holds no questions")
        self.name = name
        self.train_size = 0
        self.heldout_size = len(entries)
        lines = (json.dumps(entry, sort_keys=True, ensure_ascii=False, default=str) for entry in entries)
        try:
            self.sha256 = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        except UnicodeEncodeError as error:
            raise TaskError(
                f"task source {name}: a question holds {error.object[error.start]!a}, which is not text"
            ) from None
        self._entries, self._verdict, self._template = entries, verdict, template

    def task(self, split: Split, index: int) -> Task:
        if split == "train":
            raise TaskError(f"task source {self.name}: is an exam, which nobody trains on; take it for evaluation")
        return posed(self.name, index, self._entries[index % self.heldout_size], "whole", self._template)

    def score(self, task: Task, answer: str) -> float | Score:
        return self._verdict(task.entry, answer)


def read_exam(kind: str, path: Path, name: str | None, template: str, code: CodeConfig) -> Exam:
    """The exam in a file, by the rules of its kind."""
    where, name = f"task source {kind}/{path}", name or path.stem
    match kind:
        case "aime":
            return Exam(name, aime.entries(read_table(path), where), aime.score, template)
        case "gpqa":
            return Exam(name, gpqa.entries(read_table(path), where), gpqa.score, template)
        case "ifeval":
            from shoal.tasks.sources.exams import ifeval  # its words need an extra

            return Exam(name, ifeval.entries(read_table(path), where), ifeval.score, template)
        case "livecodebench":
            contest = livecodebench.Contest(path, code)
            return Exam(name, contest.entries(), contest.score, template)
    raise TaskError(f"{where}: {kind!r} is not one of {', '.join(KINDS)}")
