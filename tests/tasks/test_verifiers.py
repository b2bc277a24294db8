"""Environments of `verifiers` 0.3 as sources: the package's own, and one as its documentation writes them."""

import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.config import TaskConfig
from shoal.errors import TaskError
from shoal.tasks.build import build_source
from shoal.tasks.source import score

verifiers = pytest.importorskip("verifiers")
if not hasattr(verifiers, "load_environment"):
    pytest.skip("needs verifiers 0.3: make test-verifiers-0.3", allow_module_level=True)

SUMS = """
import verifiers as vf
from datasets import Dataset

def load_environment(most=40):
    dataset = Dataset.from_list([{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(most)])
    parser = vf.XMLParser(fields=["answer"])

    async def correct(completion, answer):
        return 1.0 if parser.parse_answer(completion) == answer else 0.0

    rubric = vf.Rubric(funcs=[correct, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser)
    return vf.SingleTurnEnv(dataset=dataset, system_prompt="Use <answer> tags.", parser=parser, rubric=rubric)
"""
# The package's own environment for reasoning-gym, behind the function that names every environment.
GYM = """
from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv

def load_environment(**options):
    return ReasoningGymEnv(**options)
"""
TALK = """
import verifiers as vf
from datasets import Dataset

class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return []

def load_environment():
    rubric = vf.Rubric(funcs=[lambda completion: 1.0])
    return Talk(dataset=Dataset.from_list([{"question": "q", "answer": "a"}]), rubric=rubric)
"""


BROKEN = """
import verifiers as vf
from datasets import Dataset

def polite(completion):
    raise KeyError("no such tone")

def load_environment():
    rows = [{"question": f"q{n}", "answer": "a"} for n in range(20)]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[polite]))
"""


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"vf_sums": SUMS, "vf_gym": GYM, "vf_talk": TALK, "vf_broken": BROKEN}.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("environments")
def test_a_rubric_is_the_reward_and_its_functions_are_the_parts() -> None:
    source = build_source([TaskConfig(source="verifiers/vf-sums", options={"most": 100})])
    task = source.task("train", 3)
    assert task.prompt == f"Use <answer> tags.\n\n{task.entry['messages'][-1]['content']}"
    right = score(source, task, f"<answer>{task.entry['answer']}</answer>")
    assert right.reward == pytest.approx(1.2)
    assert right.parts["correct"] == 1.0
    assert right.parts["format_reward_func"] == pytest.approx(1.0)
    assert score(source, task, "nothing").parts["correct"] == 0.0
    train, heldout = ({source.task(split, i).prompt for i in range(120)} for split in ("train", "heldout"))
    assert train & heldout == set()
    assert len(train | heldout) == 100


@pytest.mark.usefixtures("environments")
def test_the_packages_own_environment_works() -> None:
    options: dict[str, Any] = {"gym": "chain_sum", "num_train_examples": 20, "num_eval_examples": 5}
    source = build_source([TaskConfig(source="verifiers/vf-gym", options=options)])
    import reasoning_gym

    entries = reasoning_gym.create_dataset("chain_sum", size=25, seed=0)
    task = source.task("heldout", 2)
    known = entries[int(task.entry["answer"])]
    assert known["question"] in task.prompt
    assert score(source, task, f"<answer>{known['answer']}</answer>").reward == 1.0
    assert score(source, task, "<answer>x</answer>").reward in (0.0, 0.01)


@pytest.mark.usefixtures("environments")
def test_what_is_no_single_turn_environment_is_refused() -> None:
    with pytest.raises(TaskError, match=r"verifiers/vf-talk: is a Talk; of verifiers 0\.3 only single-turn"):
        build_source([TaskConfig(source="verifiers/vf-talk")])
    with pytest.raises(TaskError, match="verifiers/vf-none: cannot be loaded: "):
        build_source([TaskConfig(source="verifiers/vf-none")])


@pytest.mark.usefixtures("environments")
def test_a_rubric_that_raises_is_an_error_and_no_reward() -> None:
    source = build_source([TaskConfig(source="verifiers/vf-broken")])
    found = score(source, source.task("train", 0), "x")
    assert found.reward is None
    assert "its rubric said: " in found.error
    assert "no such tone" in found.error
