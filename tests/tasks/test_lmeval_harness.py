"""Our reading of lm-eval's own task files against the harness itself, on rows made up for each.

Runs where the harness is installed: pip install lm_eval
"""

import json
import logging
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shoal.errors import TaskError
from shoal.tasks.sources.lmeval.docs import read_docs
from shoal.tasks.sources.lmeval.prompts import prompts
from shoal.tasks.sources.lmeval.recipe import Recipe, read_recipe

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
lm_eval = pytest.importorskip("lm_eval")

FILES = int(os.environ.get("SHOAL_LM_EVAL_FILES", "40"))
ROWS = 12
ANSWERS = ["The answer is 7.", "#### 7", "#### 14 Question:", "  14 ", "(A)", "answer: 0", "yes", "no", "1,000$", ""]
SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def own_files() -> list[Path]:
    """Those of the harness's files that we take."""
    taken = []
    for path in sorted((Path(lm_eval.__file__).parent / "tasks").rglob("*.yaml")):
        try:
            read_recipe(path)
        except TaskError:
            continue
        taken.append(path)
    return taken


def value(column: str, number: int, kind: int) -> Any:
    """A cell, in one of the kinds that templates expect of it."""
    if kind == 1 and column in ("answer", "label", "target", "gold"):
        return number % 2 + 1
    if kind == 2 and column == "answer":
        return {"aliases": [f"a {number}", str(number * 7)], "value": str(number * 7)}
    if kind == 3 and column in ("answer", "choices", "answers"):
        return [str(number * 7), f"b{number}"]
    return (
        f"it is {number}. #### {number * 7}" if column in ("answer", "target") else f"{column} {number}, $ {number},000"
    )


def made_up(recipe: Recipe, folder: Path, kind: int) -> dict[str, str]:
    from jinja2 import Environment, meta

    fields = [recipe.doc_to_text, str(recipe.doc_to_target), recipe.description, recipe.gen_prefix or ""]
    columns = {name for field in fields for name in meta.find_undeclared_variables(Environment().parse(field))}
    columns |= {field for field in fields if field.isidentifier()}
    files = {}
    for split in {getattr(recipe, name) for name in SPLITS} | {recipe.fewshot_config.split}:
        if split is not None:
            first = 0 if split == recipe.test_split else 100
            lines = [{c: value(c, first + n, kind) for c in sorted(columns) or ["x"]} for n in range(ROWS)]
            path = folder / f"{split}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            files[str(split)] = str(path)
    return files


def theirs(path: Path, files: dict[str, str]) -> Any:
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    task = ConfigurableTask(config=load_yaml(path) | data)
    task.set_fewshot_seed(1234)
    task.build_all_requests(limit=None, rank=0, world_size=1)
    return task


def test_prompts_and_verdicts_are_the_harnesss_own(tmp_path: Path) -> None:
    logging.disable(logging.CRITICAL)
    files = own_files()
    compared = verdicts = 0
    for number, path in enumerate(Random(0).sample(files, min(FILES, len(files)))):
        recipe = read_recipe(path)
        for kind in range(4):
            folder = tmp_path / f"{number}-{kind}"
            folder.mkdir()
            data = made_up(recipe, folder, kind)
            try:
                task = theirs(path, data)
            except Exception:  # rows of this kind do not suit its templates
                continue
            docs = read_docs(recipe, path, data)
            asked = list(prompts(recipe, docs, str(recipe.test_split or recipe.validation_split), str(path)))
            assert [prompt for prompt, _ in asked] == [one.args[0] for one in task.instances], path
            scoring = recipe.scoring
            # The harness cuts at stops as it generates.
            uncut = scoring.model_copy(update={"until": []})
            stops = task.instances[0].args[1]["until"]
            assert scoring.until == ([stops] if isinstance(stops, str) else stops), path
            for answer in ANSWERS:
                for one in task.instances:
                    one.resps, one.filtered_resps = [answer], {}
                task.apply_filters()
                for one, (_, targets) in zip(task.instances, asked, strict=True):
                    said = {
                        name: float(task.process_results(one.doc, [text])["exact_match"])
                        for name, text in one.filtered_resps.items()
                    }
                    found = uncut.score(answer, targets)
                    assert (found.parts or {scoring.filters[0].name: found.reward or 0.0}) == said, (path, answer)
                    verdicts += len(said)
            compared += 1
            break
    logging.disable(logging.NOTSET)
    assert compared > 0.7 * min(FILES, len(files))
    assert verdicts >= compared * ROWS * len(ANSWERS)
