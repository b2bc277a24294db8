"""A run's description: what it says is what is run, and whatever is wrong with it is named."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config import RunConfig, TrainConfig
from shoal.config_docs import config_page
from shoal.config_io import check_config, describe, load_config, to_toml
from shoal.crypto.signed import canonical
from shoal.errors import ConfigError

MINIMAL: dict[str, Any] = {"name": "a", "steps": 3, "tasks": [{"source": "reasoning-gym/chain_sum"}]}
TEXT = """
name = "a"
steps = 3

[[tasks]]
source = "reasoning-gym/chain_sum"

[[tasks]]
source = "reasoning-gym/spell_backward"
options = { min_word_len = 3 }

[train]
lr = 1e-4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(TEXT)
    return path


def fault(tree: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        check_config(MINIMAL | tree, "run.toml")
    return str(raised.value)


def test_name_steps_and_tasks_are_all_a_run_needs_to_say() -> None:
    config = check_config(MINIMAL, "here")
    assert (config.async_level, config.train.grad_clip, config.train.loss.eps) == (2, 0.1, 0.2)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"async_levl": 2}, "async_levl = 2: unknown key; did you mean async_level?"),
        ({"train": {"learning_rat": 1}}, "train.learning_rat = 1: unknown key"),
        ({"train": {"grad_clp": 0.5}}, "train.grad_clp = 0.5: unknown key; did you mean train.grad_clip?"),
        ({"train": {"loss": {"epz": 0.1}}}, "train.loss.epz = 0.1: unknown key; did you mean train.loss.eps?"),
        (
            {"tasks": [{"source": "x"}, {"source": "y", "optoins": {}}]},
            "tasks.1.optoins = {}: unknown key; did you mean tasks.1.options?",
        ),
        (
            {"model": {"tiny": {"warm_tasks": [{"source": "x", "wieght": 2}]}}},
            "model.tiny.warm_tasks.0.wieght = 2: unknown key; did you mean model.tiny.warm_tasks.0.weight?",
        ),
    ],
)
def test_a_typo_is_named_with_its_value_and_the_nearest_right_key(tree: dict[str, Any], said: str) -> None:
    assert said in fault(tree)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"lr": 1e-4}, "did you mean train.lr?"),
        ({"train": {"seed": 1}}, "did you mean seed?"),
        ({"train": {"steps": 9}}, "did you mean steps?"),  # train.warmup_steps is nearer in spelling
        ({"train": {"group_size": 8}}, "did you mean sampling.group_size?"),
        ({"loss": {"eps": 0.1}}, "did you mean train.loss?"),
        ({"model": {"options": {}}}, "did you mean tasks.options?"),
        (
            {"sampling": {"threads": 1}},
            "did you mean train.threads or workers.threads or audit.threads or eval.threads?",
        ),
    ],
)
def test_a_right_key_in_the_wrong_table_is_told_its_table(tree: dict[str, Any], said: str) -> None:
    assert said in fault(tree)


def test_a_key_that_resembles_nothing_gets_the_list_of_known_ones() -> None:
    assert "known here: tasks, every, at, samples, suite, threads" in fault({"eval": {"zzzzzz": 1}})


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"steps": "many"}, "steps = 'many': Input should be a valid integer"),
        ({"steps": "5"}, "steps = '5': Input should be a valid integer"),
        ({"steps": True}, "steps = True: Input should be a valid integer"),
        ({"steps": 1.5}, "steps = 1.5: Input should be a valid integer"),
        ({"steps": 0}, "steps = 0: Input should be greater than or equal to 1"),
        ({"train": 3}, "train = 3: Input should be a valid dictionary"),
        ({"train": {"lr": "fast"}}, "train.lr = 'fast': Input should be a valid number"),
        ({"train": {"lr": float("nan")}}, "train.lr = nan: Input should be a finite number"),
        ({"train": {"lr": float("inf")}}, "train.lr = inf: Input should be a finite number"),
        ({"train": {"betas": [0.9]}}, "train.betas.1: is missing"),
        ({"train": {"betas": [0.9, 1.0]}}, "train.betas.1 = 1.0: Input should be less than 1"),
        ({"train": {"advantage_std": "yes"}}, "train.advantage_std = 'yes': Input should be a valid boolean"),
        ({"model": {"dtype": "int8"}}, "model.dtype = 'int8': Input should be 'float32' or 'bfloat16'"),
        ({"model": {"tiny": {"hidden": 100}}}, "model.tiny.hidden = 100: Input should be a multiple of 32"),
        ({"tasks": []}, "tasks = []: List should have at least 1 item"),
        ({"tasks": [{"source": "x", "weight": 0}]}, "tasks.0.weight = 0: Input should be greater than 0"),
        ({"name": "../up"}, "name = '../up': must be made of small letters, digits, dots, dashes and underscores"),
        (
            {"tasks": [{"source": "x", "template": "Solve: {}"}]},
            "tasks.0.template = 'Solve: {}': must contain {question}, which stands for the task's own text",
        ),
        ({"seed": 2**63}, "seed = 9223372036854775808: Input should be less than 9223372036854775808"),
        ({"steps": 2**31}, "steps = 2147483648: Input should be less than 2147483648"),
        ({"train": {"threads": 10**6}}, "train.threads = 1000000: Input should be less than or equal to 1024"),
        ({"eval": {"threads": 10**6}}, "eval.threads = 1000000: Input should be less than or equal to 1024"),
        ({"workers": {"threads": 10**6}}, "workers.threads = 1000000: Input should be less than or equal to 1024"),
        ({"workers": {"count": 10**6}}, "workers.count = 1000000: Input should be less than or equal to 1024"),
        ({"workers": {"max_batch": 10**9}}, "workers.max_batch = 1000000000: Input should be less than or equal to"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_the_rule(tree: dict[str, Any], said: str) -> None:
    assert said in fault(tree)


def test_bfloat16_workers_of_a_float32_run_are_refused_by_name() -> None:
    """Honest workers that compute in bfloat16 break thresholds of float32: every file of theirs would be rejected."""
    said = fault({"workers": {"dtype": "bfloat16"}})
    assert "workers.dtype = 'bfloat16': honest workers would be rejected" in said
    check_config(MINIMAL | {"model": {"dtype": "bfloat16"}}, "test")
    check_config(MINIMAL | {"model": {"dtype": "bfloat16"}, "workers": {"dtype": "float32"}}, "test")


def test_numbers_that_are_only_reported_are_those_of_bfloat16_runs() -> None:
    """In a float32 run the setting would be obeyed nowhere."""
    assert "audit.enforce = false: only reports what bfloat16 numbers show" in fault({"audit": {"enforce": False}})
    check_config(MINIMAL | {"model": {"dtype": "bfloat16"}, "audit": {"enforce": False}}, "test")


@pytest.mark.parametrize("key", ["name", "steps", "tasks"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: is missing and has no default; add it"):
        check_config({k: v for k, v in MINIMAL.items() if k != key}, "here")


LONG = {"sampling": {"group_size": 16, "max_new_tokens": 32768}, "train": {"token_budget": 40000}}


def test_a_step_of_long_answers_in_many_files_is_within_the_bound() -> None:
    """INTELLECT-2's 256 groups of 16 answers, with one group per file up to all that a file holds."""
    for groups in (1, 8, 80):
        config = check_config({**MINIMAL, **LONG, "workers": {"groups_per_submission": groups}}, "test")
        tokens_logprobs_and_proofs = groups * 16 * (32768 * 8 + 1024 * 258)
        assert tokens_logprobs_and_proofs < config.max_file_bytes < 1 << 30


def test_all_faults_are_told_at_once() -> None:
    said = fault({"steps": -1, "seed": "x", "sampling": {"group_size": 1}})
    assert all(key in said for key in ("steps = -1", "seed = 'x'", "sampling.group_size = 1"))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (
            {"train": {"token_budget": 100}, "sampling": {"max_prompt_tokens": 90, "max_new_tokens": 11}},
            "train.token_budget = 100: must hold the longest sample",
        ),
        ({"train": {"optimizer_steps": 3, "groups_per_step": 2}}, "train.optimizer_steps = 3: each needs a group"),
        ({"async_level": 4}, "keep.versions = 5: async_level 4 and train.checkpoint_every 1 need at least 6 versions"),
        ({"train": {"loss": {"eps": 0.5, "delta": 1.4}}}, "delta 1.4 must exceed 1 + eps = 1.5"),
        ({**LONG, "workers": {"lease_s": 30.0}}, "workers.lease_s = 30: an answer of sampling.max_new_tokens = 32768"),
        ({**LONG, "wait_s": 30.0, "ledger": {"quorum": 2, "drawn": 3}}, "wait_s = 30: no validator could vote in time"),
        (
            {**LONG, "workers": {"groups_per_submission": 256}},
            "file may have 3,305,439,232 bytes, and at most 1,073,741",
        ),
    ],
)
def test_values_that_exclude_each_other_are_named_together(tree: dict[str, Any], said: str) -> None:
    assert said in fault(tree)


@pytest.mark.parametrize("level", [0, 1, 2, 4])
def test_every_async_level_that_is_promised_can_be_configured(level: int) -> None:
    config = check_config(MINIMAL | {"async_level": level, "keep": {"versions": level + 2}}, "here")
    assert config.async_level == level


def test_a_setting_reaches_a_nested_key(file: Path) -> None:
    assert load_config(file, ["train.loss.kl_coef=0.5"]).train.loss.kl_coef == 0.5


def test_a_setting_reaches_into_a_list_by_index(file: Path) -> None:
    config = load_config(file, ["tasks.1.options.min_word_len=4", "tasks.0.weight=3"])
    assert (config.tasks[1].options, config.tasks[0].weight) == ({"min_word_len": 4}, 3)


def test_a_setting_may_replace_a_whole_item_of_a_list(file: Path) -> None:
    assert load_config(file, ["tasks.0={ source = 'other' }"]).tasks[0].source == "other"


def test_a_bare_word_needs_no_quotes(file: Path) -> None:
    assert load_config(file, ["model.source=./models/my model"]).model.source == "./models/my model"


def test_the_last_of_two_settings_wins(file: Path) -> None:
    assert load_config(file, ["steps=4", "steps=7"]).steps == 7


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.lr", "--set train.lr: must read key=value"),
        ("=3", "--set =3: must read key=value"),
        ("steps.x=3", "--set steps.x=3: steps is a value, not a table"),
        ("tasks.2.weight=1", "2 must be an index from 0 to 1"),
        ("tasks.first.weight=1", "first must be an index from 0 to 1"),
        ("tasks.-1.weight=1", "-1 must be an index from 0 to 1"),
        ("tasks.².weight=1", "² must be an index from 0 to 1"),
        ("tasks.5=1", "5 must be an index from 0 to 1"),
        ("train.lrr=1", "train.lrr = 1: unknown key; did you mean train.lr?"),
        ("steps=", "steps = '': Input should be a valid integer"),
    ],
)
def test_a_bad_setting_is_named_as_it_was_written(file: Path, setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(file, [setting])
    assert said in str(raised.value)


def test_a_file_that_is_not_toml_is_told_so_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "a"\nsteps =\n')
    with pytest.raises(ConfigError, match=r"run\.toml: not valid TOML: .*line 2"):
        load_config(path)


def test_a_binary_file_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(path)


def test_a_byte_order_mark_is_no_part_of_the_config(file: Path) -> None:
    plain = load_config(file)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_config(file) == plain


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read \(No such file or directory\)"):
        load_config(tmp_path / "nowhere.toml")


def test_a_config_cannot_change_after_it_was_checked(file: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config(file).steps = 9  # type: ignore[misc]


def test_every_key_says_what_it_is() -> None:
    rows = describe()
    assert len(rows) > 50
    assert [name for name, text in rows if not text.endswith(".")] == []


def round_trip(tree: dict[str, Any], folder: Path) -> tuple[RunConfig, RunConfig]:
    config = check_config(MINIMAL | tree, "here")
    path = folder / "written.toml"
    path.write_text(to_toml(config))
    return config, load_config(path)


texts = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
tasks = st.fixed_dictionaries(
    {"source": texts},
    optional={"options": st.dictionaries(texts, values, max_size=4), "name": texts, "binary": st.booleans()},
)
trees = st.fixed_dictionaries(
    {"tasks": st.lists(tasks, min_size=1, max_size=3)},
    optional={
        "seed": st.integers(0, 2**62),
        "wait_s": st.floats(1e-9, 1e30),
        "model": st.fixed_dictionaries(
            {"source": texts, "tiny": st.fixed_dictionaries({"warm_tasks": st.lists(tasks)})}
        ),
        "train": st.fixed_dictionaries(
            {"lr": st.floats(1e-30, 1), "betas": st.tuples(st.just(0), st.floats(0, 0.999))}
        ),
    },
)


@given(tree=trees)
def test_the_resolved_config_reads_back_to_the_same_value(
    tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    written, read = round_trip(tree, tmp_path_factory.getbasetemp())
    assert read == written


@pytest.mark.parametrize("text", ["\x7f", "\x00\x1f\r\n\t\b\f", 'quo"te\\back', "\u2028\u0085", "𝄞 Ω", "'''", "#"])
def test_odd_characters_survive_the_round_trip(text: str, tmp_path: Path) -> None:
    written, read = round_trip({"tasks": [{"source": text, "options": {text: [text, {text: text}]}}]}, tmp_path)
    assert read == written


@pytest.mark.parametrize("text", ["2024-01-01", "07:32:00", "inf", "nan"])
def test_an_option_that_other_processes_could_not_read_back_is_refused(file: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.1\.options\.min_word_len"):
        load_config(file, [f"tasks.1.options.min_word_len={text}"])


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_every_config_we_ship_is_valid_and_reads_back(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    (tmp_path / "written.toml").write_text(to_toml(config))
    assert load_config(tmp_path / "written.toml") == config


def test_the_page_of_settings_is_that_of_this_tree() -> None:
    page = Path(__file__).parents[1] / "docs" / "config.md"
    assert page.read_text() == config_page(), "write it again: python -m shoal.config_docs > docs/config.md"


def test_every_setting_is_on_the_page_with_its_meaning() -> None:
    page = config_page()
    for key, meaning in describe():
        assert meaning
        assert f"| `{key.rpartition('.')[2]}` |" in page


def test_defaults_that_are_not_those_of_the_paper_say_so() -> None:
    """INTELLECT-2, arXiv:2505.07291: 256 prompts and 8 optimizer steps per training step."""
    said = TrainConfig.__doc__ or ""
    assert f"groups_per_step ({TrainConfig().groups_per_step} here, 256 there)" in " ".join(said.split())
    assert f"optimizer_steps ({TrainConfig().optimizer_steps} here, 8 there)" in " ".join(said.split())


@given(options=st.dictionaries(texts, values, max_size=4))
def test_options_that_are_signed_alike_are_read_alike(options: dict[str, Any]) -> None:
    """Over plain http, somebody in the middle may write 1.0 for 1 without breaking the run card's signature."""
    reread = json.loads(canonical(options))
    first, second = (check_config(tree_with(found), "test").tasks[0].options for found in (options, reread))
    assert json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def tree_with(options: dict[str, Any]) -> dict[str, Any]:
    return {"name": "a", "steps": 1, "tasks": [{"source": "x", "options": options}]}
