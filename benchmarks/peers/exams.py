"""Reference scorers of exams: the other side of `python -m benchmarks evals`.

A standalone script. The python of an environment that has lm-eval runs it (`evals.bench`), so it imports nothing of
shoal, and they meet only in JSON lines on stdin and stdout:

    in   {"open": "aime24", "docs": [{..}, ..]}          rows as the data set has them
    out  {"docs": [{..}, ..], "version": "0.4.13"}       rows as the task prepares them: GPQA's choices are shuffled
    in   {"judge": [["answer", ..], ..]}                 answers to each row
    out  {"verdicts": [[{"exact_match": 1}, ..], ..]}    what the task's own functions and filters say
    in   {"open": "livecodebench", "docs": [..], "scorer": "/path/codegen_metrics.py", "seconds": 6}

For LiveCodeBench, whose runner is not on PyPI, lighteval's copy of it judges, which is one file without lighteval's
own dependencies.
"""

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILES = {
    "aime24": "aime/aime24.yaml",
    "aime25": "aime/aime25.yaml",
    "gpqa": "gpqa/cot_zeroshot/gpqa_diamond_cot_zeroshot.yaml",
    "ifeval": "ifeval/ifeval.yaml",
}
Judge = Callable[[list[list[str]]], list[list[dict[str, Any]]]]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    judge: Judge | None = None
    for line in sys.stdin:
        question = json.loads(line)
        if "judge" in question:
            assert judge is not None
            reply: dict[str, Any] = {"verdicts": judge(question["judge"])}
        elif question["open"] == "livecodebench":
            judge, reply = open_contest(question)
        else:
            judge, reply = open_task(question)
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def open_task(question: dict[str, Any]) -> tuple[Judge, dict[str, Any]]:
    """A task of lm-eval, with rows in the place of its data set."""
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    if question["open"] == "ifeval":
        import langdetect

        # It draws at random; without a seed its verdicts on short texts change from run to run.
        langdetect.DetectorFactory.seed = 0
    path = Path(lm_eval.__file__).parent / "tasks" / FILES[question["open"]]
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "rows.jsonl"
        rows.write_text("".join(json.dumps(doc) + "\n" for doc in question["docs"]))
        config = load_yaml(path)
        split = config.get("test_split") or config["validation_split"]
        data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": {split: str(rows)}}}
        task = ConfigurableTask(config=config | data)
        task.set_fewshot_seed(1234)
        task.build_all_requests(limit=None, rank=0, world_size=1)
    return (
        lambda answers: judge_with(task, answers),
        {"docs": [one.doc for one in task.instances], "version": lm_eval.__version__},
    )


def judge_with(task: Any, answers: list[list[str]]) -> list[list[dict[str, Any]]]:
    """Verdicts by name, one for each list of filters, on the answers to each row."""
    found: list[list[dict[str, Any]]] = [[] for _ in answers]
    for number in range(max(map(len, answers))):
        for one, given in zip(task.instances, answers, strict=True):
            one.resps, one.filtered_resps = [given[min(number, len(given) - 1)]], {}
        task.apply_filters()
        for one, given, verdicts in zip(task.instances, answers, found, strict=True):
            if number < len(given):
                verdicts.append(_verdict(task, one))
    return found


def _verdict(task: Any, one: Any) -> dict[str, Any]:
    said = {}
    for name, text in one.filtered_resps.items():
        text = text[0] if isinstance(text, list) else text
        for metric, value in task.process_results(one.doc, [text]).items():
            value = [float(part) for part in value] if isinstance(value, list) else float(value)
            said[metric if len(one.filtered_resps) == 1 else f"{metric}:{name}"] = value
    return said


def open_contest(question: dict[str, Any]) -> tuple[Judge, dict[str, Any]]:
    """lighteval's copy of LiveCodeBench's runner, on rows of `code_generation_lite`."""
    spec = importlib.util.spec_from_file_location("codegen_metrics", question["scorer"])
    assert spec is not None
    assert spec.loader is not None
    scorer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scorer)

    def judge(answers: list[list[str]]) -> list[list[dict[str, Any]]]:
        return [
            [{"passed": passes(doc, answer)} for answer in given]
            for doc, given in zip(question["docs"], answers, strict=True)
        ]

    def passes(doc: dict[str, Any], answer: str) -> float:
        tests = json.loads(doc["public_test_cases"])
        tests += scorer.translate_private_test_cases(doc["private_test_cases"])
        sample = {
            "inputs": [test["input"] for test in tests],
            "outputs": [test["output"] for test in tests],
            "fn_name": json.loads(doc["metadata"]).get("func_name"),
        }
        code = scorer.extract_code(answer)
        results = scorer.check_correctness({"input_output": json.dumps(sample)}, code, timeout=question["seconds"])
        return float(all(result is True or result > 0 for result in results))

    return judge, {"docs": question["docs"], "version": "lighteval 0.13.0"}


if __name__ == "__main__":
    main()
