"""Factory of task sources: builds them from the config's `[[tasks]]` and pins their content by hash."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.files import held, is_loose, keep, keep_bytes, named, place_of
from shoal.tasks.prompts import framed
from shoal.tasks.rewards.combine import rewarded
from shoal.tasks.source import Mixture, TaskSource, content_of
from shoal.tasks.sources.filtered import Filtered, layers, read_filtered

KINDS = (
    "reasoning-gym/GENERATOR, file/PATH, dataset/NAME, lm-eval/FILE.yaml, verifiers/NAME, python/FILE.py, "
    "environment/NAME, environment/FILE.py, filtered/FILE, or an exam: aime/FILE, gpqa/FILE, ifeval/FILE, "
    "livecodebench/FILE"
)


def split_up(tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
    """One line for each source that the lines stand for: composites and lists of difficulties are several."""
    return [part for task in tasks for part in _parts(task)]


def build_source(tasks: Sequence[TaskConfig]) -> TaskSource:
    """One source out of the config's `[[tasks]]`, mixed by weight if there are several."""
    parts = split_up(tasks)
    sources = [rewarded(framed(_build(part), part.system, part.prefill), part) for part in parts]
    return sources[0] if len(sources) == 1 else Mixture(sources, [part.weight for part in parts])


def pinned(tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
    """The same sources, each with the hash of what it holds now, and its files kept: any other content is refused."""
    return [_pinned(task) for task in tasks]


def files_of(tasks: Sequence[TaskConfig]) -> dict[str, Path]:
    """All files that pinned sources are made of, by their hashes; those of what was filtered as well."""
    lines = [task for layer in layers(tasks, "tasks") for task in layer]
    return {task.files[name]: held(name, task.files) for task in lines for name in named(task) if name in task.files}


def has_content(task: TaskConfig) -> bool:
    """Whether a source holds something that its line of a config does not say, and whose hash it is given."""
    return not task.source.startswith("reasoning-gym/")  # what a generator makes follows from its options


def _pinned(task: TaskConfig) -> TaskConfig:
    if is_loose(task):
        task = _as_file(task)
    files = {name: task.files.get(name) or keep(Path(name)) for name in named(task)}
    task = task.model_copy(update={"files": files})
    found = content_of(_build(task)) if has_content(task) else None
    return task.model_copy(update={"sha256": found})


def _as_file(task: TaskConfig) -> TaskConfig:
    """A dataset as a table of our own, for machines that cannot get at it; a task of lm-eval likewise."""
    from shoal.tasks.sources.table import read_dataset

    kind, _, place = task.source.partition("/")
    if kind == "lm-eval":
        from shoal.tasks.sources.lmeval.source import bundle

        title, data = bundle(Path(place), **_extras(task))
        name = f"{Path(place).stem}.jsonl"
        changes = {"source": f"lm-eval/{name}", "name": task.name or title, "options": {}}
        return task.model_copy(update=changes | {"files": task.files | {name: keep_bytes(data, name)}})
    rows = read_dataset(place, task.options, task.columns)
    table = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    name = f"{Path(place).name}.jsonl"
    own = {"source": f"file/{name}", "name": task.name or Path(place).name, "options": {}, "columns": {}}
    return task.model_copy(update=own | {"files": task.files | {name: keep_bytes(table.encode(), name)}})


def _parts(task: TaskConfig) -> list[TaskConfig]:
    """A composite and a list of difficulties as one source each, so that it is known whose scorer sees an answer."""
    kind, _, rest = task.source.partition("/")
    if kind == "reasoning-gym" and rest == "composite":
        return [part for member in _members(task) for part in _parts(member)]
    if not isinstance(task.difficulty, list):
        return [task]
    share = task.weight / len(task.difficulty)
    name = task.name or rest
    return [
        task.model_copy(update={"difficulty": level, "weight": share, "name": f"{name}@{level}"})
        for level in task.difficulty
    ]


def _members(task: TaskConfig) -> list[TaskConfig]:
    specs: Any = task.options.get("datasets")
    fits = (
        isinstance(specs, list) and specs and all(isinstance(s, dict) and isinstance(s.get("name"), str) for s in specs)
    )
    if not fits or set(task.options) != {"datasets"}:
        raise TaskError(
            f"task source {task.source}: options {task.options}: must be "
            "datasets = [{ name = GENERATOR, weight = 1, config = {...} }, ...]"
        )
    total = sum(float(spec.get("weight", 1)) for spec in specs)
    return [
        task.model_copy(
            update={
                "source": f"reasoning-gym/{spec['name']}",
                "name": f"{task.name}.{spec['name']}" if task.name else spec["name"],
                "weight": task.weight * float(spec.get("weight", 1)) / total,
                "options": spec.get("config", {}),
            }
        )
        for spec in specs
    ]


def _build(task: TaskConfig) -> TaskSource:
    kind, _, rest = task.source.partition("/")
    if not rest:
        raise TaskError(f"task source {task.source}: names no source; write {KINDS}")
    if kind != "reasoning-gym" and task.difficulty is not None:
        raise TaskError(f"task source {task.source}: has no difficulty; only reasoning-gym's generators do")
    if kind not in ("file", "dataset") and task.solve_rate is not None:
        raise TaskError(
            f"task source {task.source}: solve_rate filters tables; only file/PATH and dataset/NAME have it"
        )
    if kind != "environment" and task.unverified == "accept":
        raise TaskError(
            f'task source {task.source}: unverified = "accept", but only environments have it: validators score its '
            "answers again; leave unverified out"
        )
    try:
        source = _source(kind, rest, task)
    except TaskError as error:
        raise TaskError(_as_named(str(error), task)) from error
    found = content_of(source)
    if task.sha256 is not None and task.sha256 != found:
        raise TaskError(
            f"task source {task.source}: its content has the hash {found}, the run was made with {task.sha256}; "
            "put back the content that it had then"
        )
    return source


def _as_named(text: str, task: TaskConfig) -> str:
    """An error's text with files as the config names them, wherever they are kept by their hashes."""
    for name, sha256 in task.files.items():
        text = text.replace(str(place_of(sha256, name)), name)
    return text


def _source(kind: str, rest: str, task: TaskConfig) -> TaskSource:
    options: dict[str, Any] = dict(task.options)
    match kind:
        case "reasoning-gym":
            from shoal.tasks.sources.gym.source import ReasoningGym

            if not isinstance(task.difficulty, list):
                return ReasoningGym(
                    rest,
                    options,
                    name=task.name,
                    binary=task.binary,
                    answer=task.answer,
                    template=task.template,
                    difficulty=task.difficulty,
                )
        case "file":
            from shoal.tasks.sources.table import Rows, read_rows

            rows = read_rows(held(rest, task.files), task.columns)
            return Rows(task.name or Path(rest).stem, rows, **_table_options(task))
        case "dataset":
            from shoal.tasks.sources.table import Rows, read_dataset

            rows = read_dataset(rest, options, task.columns)
            return Rows(task.name or Path(rest).name, rows, **_table_options(task))
        case "lm-eval":
            from shoal.tasks.sources.lmeval.source import LmEval

            return LmEval(held(rest, task.files), name=task.name, template=task.template, **_extras(task))
        case "aime" | "gpqa" | "ifeval" | "livecodebench":
            from shoal.tasks.sources.exams.source import read_exam

            return read_exam(kind, held(rest, task.files), task.name or Path(rest).stem, task.template, task.code)
        case "filtered":
            header, rated = read_filtered(held(rest, task.files))
            return Filtered(Path(rest), header, build_source(header.tasks), rated)
        case "verifiers":
            from shoal.tasks.sources.verifiers import Environment

            return Environment(rest, options, name=task.name or rest, template=task.template)
        case "environment":
            from shoal.tasks.environments.source import build_environment

            return build_environment(task, lambda name: held(name, task.files))
        case "python":
            from shoal.tasks.sources.user_python import Own

            name = task.name or Path(rest).stem
            where = held(rest, task.files)
            return Own(where, name=name, options=options, place=task.answer, template=task.template)
    raise TaskError(f"task source {task.source}: unknown kind {kind!r}; write {KINDS}")


def _table_options(task: TaskConfig) -> dict[str, Any]:
    return {"place": task.answer, "template": task.template, "solve_rate": task.solve_rate}


def _extras(task: TaskConfig) -> dict[str, Any]:
    """What a line may add to an lm-eval task: local files in the place of its data, and its training split."""
    match task.options:
        case {**options} if set(options) <= {"data", "train"} and isinstance(options.get("train", False), bool):
            return {"data": options.get("data"), "train": bool(options.get("train"))}
    raise TaskError(
        f"task source {task.source}: options {task.options}: known are data = {{ test = FILE, ... }}, which stands for "
        "the dataset that it names, and train = true, which takes its training split too"
    )
