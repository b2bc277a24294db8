"""Tasks of lm-evaluation-harness by file: its prompts, its verdicts, and a name for whatever is not supported."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.evals.suite_catalogue import find_suite
from shoal.tasks.build import build_source, files_of, pinned
from shoal.tasks.files import check_foreign
from shoal.tasks.rewards.scorer import Scorer

# The settings of the published task gsm8k, except for where its data is stored.
GSM8K = r"""
tag:
  - math_word_problems
task: gsm8k
dataset_path: json
dataset_kwargs:
  data_files:
    train: train.jsonl
    test: test.jsonl
output_type: generate_until
training_split: train
fewshot_split: train
test_split: test
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{answer}}"
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    ignore_punctuation: false
    regexes_to_ignore: [",", "\\$", "(?s).*#### ", "\\.$"]
generation_kwargs:
  until: ["Question:", "</s>"]
  do_sample: false
  temperature: 0.0
repeats: 1
num_fewshot: 2
filter_list:
  - name: "strict-match"
    filter:
      - function: "regex"
        regex_pattern: "#### (\\-?[0-9\\.\\,]+)"
      - function: "take_first"
  - name: "flexible-extract"
    filter:
      - function: "regex"
        group_select: -1
        regex_pattern: "(-?[$0-9.,]{2,})|(-?[0-9]+)"
      - function: "take_first"
metadata:
  version: 3.0
"""


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"question": f"{n} and {n}?", "answer": f"Twice {n}.\n#### {2 * n}"} for n in range(first, first + count)]


def write(folder: Path, text: str = GSM8K, **changes: Any) -> Path:
    for name, table in {"train": rows(0, 5), "test": rows(600, 12)}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    path = folder / "task.yaml"
    tree = yaml.safe_load(text) | changes
    path.write_text(yaml.safe_dump({key: value for key, value in tree.items() if value != "drop"}))
    return path


def source_of(path: Path, **options: Any) -> Any:
    return build_source([TaskConfig(source=f"lm-eval/{path}", options=options)])


def test_a_prompt_is_the_harnesss_own_with_its_examples(tmp_path: Path) -> None:
    (tmp_path / "as-published.yaml").write_text(GSM8K)
    write(tmp_path)
    source = source_of(tmp_path / "as-published.yaml")
    # What lm-eval 0.4.13 asks: Random(1234) draws rows 3 and 0 of five for the first question.
    shown = "".join(f"Question: {n} and {n}?\nAnswer: Twice {n}.\n#### {2 * n}\n\n" for n in (3, 0))
    assert source.task("heldout", 0).prompt == f"{shown}Question: 600 and 600?\nAnswer:"
    assert (source.name, source.heldout_size, source.train_size) == ("gsm8k", 12, 0)


@pytest.mark.parametrize(
    ("answer", "strict", "flexible"),
    [
        (" It is so.\n#### 1200", 1, 1),
        (" It is so.\n#### 1,200.", 1, 1),
        (" Surely $1200", 0, 1),
        (" #### 1200\n\nQuestion: 7 and 7?\nAnswer: #### 14", 1, 1),
        (" #### 1201", 0, 0),
        (" 1200 or 7", 0, 0),
        ("", 0, 0),
    ],
)
def test_filters_find_the_answer_and_each_has_its_verdict(
    tmp_path: Path, answer: str, strict: float, flexible: float
) -> None:
    source = source_of(write(tmp_path))
    found = source.score(source.task("heldout", 0), answer)
    assert found.reward == strict
    assert found.parts == {"strict-match": strict, "flexible-extract": flexible}


def test_what_a_metric_ignores_is_ignored_and_any_of_several_targets_will_do(tmp_path: Path) -> None:
    metric = {"metric": "exact_match", "ignore_case": True, "ignore_punctuation": True, "ignore_numbers": True}
    changes: dict[str, Any] = {
        "metric_list": [metric],
        "filter_list": "drop",
        "doc_to_target": "['The Hague', 'den haag']",
    }
    source = source_of(write(tmp_path, **changes))
    task = source.task("heldout", 0)
    assert task.answer == "The Hague"
    assert [source.score(task, said).reward for said in ("the hague!", "Den Haag2", "hague")] == [1, 1, 0]
    plain = source_of(write(tmp_path, metric_list="drop", filter_list="drop", doc_to_target="answer"))
    assert plain.score(plain.task("heldout", 0), "twice 600.\n#### 1200").reward == 0
    assert plain.score(plain.task("heldout", 0), "Twice 600.\n#### 1200").reward == 1


def test_columns_descriptions_prefixes_and_own_examples_make_the_prompt(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "description": "Sums such as {{question}}\n",
        "doc_to_text": "question",
        "doc_to_target": "{{ answer | regex_replace('(?s).*#### ', '') }}",
        "gen_prefix": "I say",
        "num_fewshot": 1,
        "fewshot_split": "drop",
        "fewshot_delimiter": "\n--\n",
        "fewshot_config": {"sampler": "first_n", "samples": [{"question": "q?", "answer": "#### a"}]},
    }
    prompt = source_of(write(tmp_path, **changes)).task("heldout", 1).prompt
    assert prompt == "Sums such as 601 and 601?\nq? I say a\n--\n601 and 601? I say"


def test_a_question_is_never_its_own_example(tmp_path: Path) -> None:
    source = source_of(write(tmp_path, fewshot_split="test", num_fewshot=11))
    for index in range(12):
        parts = source.task("heldout", index).prompt.split("Question: ")
        assert len(parts) == 13
        assert len({part[:10] for part in parts}) == 13
    with pytest.raises(TaskError, match="num_fewshot = 12, and there are 11 examples to draw from"):
        source_of(write(tmp_path, fewshot_split="test", num_fewshot=12))


def test_a_file_may_build_on_another(tmp_path: Path) -> None:
    write(tmp_path)
    child = tmp_path / "child.yaml"
    child.write_text("include: task.yaml\ntask: harder\nnum_fewshot: 0\n")
    assert source_of(child).task("heldout", 0).prompt == "Question: 600 and 600?\nAnswer:"
    assert source_of(child).name == "harder"
    child.write_text("include: child.yaml\n")
    with pytest.raises(TaskError, match="includes itself"):
        source_of(child)


def test_data_are_json_lists_parquet_or_other_files_in_their_place(tmp_path: Path) -> None:
    path = write(tmp_path)
    asked = [source_of(path).task("heldout", i) for i in range(12)]
    pq.write_table(pa.Table.from_pylist(rows(600, 12)), tmp_path / "test.parquet")
    (tmp_path / "train.json").write_text(json.dumps(rows(0, 5), indent=1))
    hub = write(tmp_path, dataset_path="openai/gsm8k", dataset_name="main", dataset_kwargs="drop")
    data = {"train": "train.json", "test": ["test.parquet"]}
    assert [source_of(hub, data=data).task("heldout", i) for i in range(12)] == asked
    with pytest.raises(TaskError, match=r"known are data = "):
        source_of(hub, files={})
    with pytest.raises(TaskError, match="no split 'test'; they have train"):
        source_of(hub, data="train.json")


def test_its_training_split_is_trained_on_only_if_that_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, num_fewshot=1)
    with pytest.raises(TaskError, match="none of its 12 tasks is in the train split"):
        source_of(path).task("train", 0)
    source = source_of(path, train=True)
    assert (source.train_size, source.heldout_size) == (5, 12)
    assert source.task("train", 1).prompt.endswith("Question: 1 and 1?\nAnswer:")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"output_type": "multiple_choice"}, "output_type = multiple_choice: Input should be 'generate_until'"),
        ({"doc_to_choice": "choices"}, "doc_to_choice = choices: what it would do is not done here"),
        ({"use_prompt": "promptsource:*"}, "use_prompt = promptsource"),
        ({"metric_list": [{"metric": "bleu"}]}, r"metric_list\.0\.metric = bleu: Input should be 'exact_match'"),
        ({"filter_list": [{"filter": [{"function": "majority_vote"}]}]}, "function majority_vote; known: 'regex', "),
        (
            {"filter_list": [{"filter": [{"function": "regex", "regex_pattern": "("}]}]},
            "is not a valid regular expression",
        ),
        ({"generation_kwargs": {"num_beams": 4}}, r"generation_kwargs\.num_beams = 4"),
        ({"task": ["a", "b"]}, "is a group of tasks; give the file of each"),
        ({"doc_to_text": "drop"}, "doc_to_text: is missing"),
        ({"test_split": "drop"}, "neither test_split nor validation_split"),
        ({"doc_to_text": "{{ nothing }}"}, "'nothing' is undefined; columns are question, answer"),
        ({"doc_to_text": "{{ question"}, "fails: unexpected end of template"),
        ({"doc_to_text": "{{ ''.__class__.__mro__ }}"}, "is unsafe"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        source_of(write(tmp_path, **changes))


def test_code_is_never_run(tmp_path: Path) -> None:
    path = write(tmp_path)
    mark = tmp_path / "mark"
    (tmp_path / "utils.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef f(x):\n    return x\n"
    )
    text = path.read_text()
    path.write_text(text + "process_docs: !function utils.f\n")
    with pytest.raises(TaskError, match=r"process_docs is !function utils\.f, which is code and is not run"):
        source_of(path)
    path.write_text(text + f"metadata: !!python/object/apply:os.system ['touch {mark}']\n")
    with pytest.raises(TaskError, match="not the YAML that is understood here"):
        source_of(path)
    assert not mark.exists()


def test_a_run_carries_its_prompts_and_nothing_of_the_files_that_they_came_from(tmp_path: Path) -> None:
    path = write(tmp_path)
    loose = TaskConfig(source=f"lm-eval/{path}")
    with pytest.raises(TaskError, match="gives no hash of it; do not join it"):
        check_foreign([loose.model_copy(update={"files": {str(path): "0" * 64}})], "run", False)
    before = [build_source([loose]).task("heldout", index) for index in range(12)]
    (line,) = pinned([loose])
    for file in tmp_path.iterdir():
        file.unlink()
    check_foreign([line], "run", False)
    assert list(files_of([line])) == list(line.files.values())
    source = build_source([line])
    assert [source.task("heldout", index) for index in range(12)] == before
    with Scorer([line]) as judge:
        (score,) = judge.scores("heldout", [(before[2], "#### 1204")])
    assert score.parts == {"strict-match": 1.0, "flexible-extract": 1.0}


def test_a_suite_of_one_file_asks_all_of_it_as_the_file_says(tmp_path: Path) -> None:
    suite = find_suite(str(write(tmp_path, generation_kwargs={"max_gen_toks": 40})))
    assert (suite.name, suite.tasks, suite.samples, suite.temperature) == ("gsm8k", 12, 1, 0.0)
    assert suite.max_new_tokens == 40
    drawn = find_suite(str(write(tmp_path, repeats=4, generation_kwargs={"do_sample": True, "temperature": 0.7})))
    assert (drawn.samples, drawn.temperature, drawn.max_new_tokens) == (4, 0.7, 256)
