"""vLLM as an honest way: computed for real where it is installed, and named in errors where it cannot be."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.errors import ConfigError, ModelError
from shoal.models.load import load_as
from shoal.protocol.rates.shipped import default_rates
from shoal.validate.numerics.bets import Bets
from shoal.validate.numerics.honest_answers import Drawn, honest_answers, machine_answers
from shoal.validate.numerics.judge import VOID_NATS, Weighed
from shoal.validate.numerics.observe import own_noise
from shoal.validate.numerics.vllm_way import VARIABLE, Vllm, vllm_python
from shoal.validate.numerics.ways import WAYS
from tests.support.model_and_checks import model_dir


@pytest.mark.skipif(vllm_python() is None, reason=f"vLLM is not installed here, and {VARIABLE} names no interpreter")
def test_vllm_differs_by_rounding_and_is_accepted_by_odds_that_never_saw_it() -> None:
    python, directory = vllm_python(), model_dir("short")
    assert python is not None
    policy = load_as(directory, "bfloat16", "float32")
    ids = torch.randint(0, policy.vocab, (8, 71), generator=torch.Generator().manual_seed(0)).tolist()
    texts = [Drawn(row[:7], row[7:], (7, number)) for number, row in enumerate(ids)]
    with Vllm(python, directory, 70) as vllm:
        answers = machine_answers(policy, vllm.computed, texts, 1.0)
        assert vllm.profile.engine.startswith("vllm-")
    noise = own_noise(honest_answers(policy, WAYS["flash"], texts, 1.0))
    size = float(np.sqrt(np.mean(np.concatenate([answer.gaps_T for answer in answers]) ** 2)))
    assert 0.2 < size / noise.gap < 3
    assert Weighed(Bets(default_rates().without("vllm")).nats(answers, noise), 512).total < VOID_NATS


def test_a_variable_that_names_no_program_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=r"SHOAL_VLLM_PYTHON=.*python: not a program; give an interpreter with vLLM"):
        vllm_python()


def test_without_the_variable_it_is_this_interpreter_if_it_has_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert vllm_python() == (Path(sys.executable) if importlib.util.find_spec("vllm") else None)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="this interpreter has vLLM")
def test_an_interpreter_without_vllm_is_named_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"vLLM \({sys.executable}\).*No module named 'vllm'"):
        Vllm(Path(sys.executable), tmp_path, 8).__enter__()
