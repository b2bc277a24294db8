"""What is made of vLLM's answers on this side; `tests/vllm/test_engine.py` has real ones."""

from types import SimpleNamespace

import pytest

from shoal.errors import ModelError
from shoal.generate.engine import Request
from shoal.generate.vllm.engine import VllmEngine, _Submitted


def answer(*logprobs: float, finish: str | None = "length") -> SimpleNamespace:
    return SimpleNamespace(
        finish_reason=finish, token_ids=range(len(logprobs)), logprobs=SimpleNamespace(logprobs=list(logprobs))
    )


@pytest.fixture
def engine() -> VllmEngine:
    """Without vLLM, and with one request that is running."""
    found = object.__new__(VllmEngine)
    found._submitted = {3: _Submitted(8, Request((1,), 0, 0, 2))}
    return found


@pytest.mark.parametrize("wrong", [float("nan"), float("-inf"), float("inf")])
def test_numbers_that_are_none_never_come_into_a_file(engine: VllmEngine, wrong: float) -> None:
    with pytest.raises(ModelError, match="the weights have diverged"):
        engine._completion(3, answer(-0.5, wrong), b"")


@pytest.mark.parametrize("why", ["abort", "error", None])
def test_an_answer_that_vllm_broke_off_is_not_taken_for_one_of_full_length(engine: VllmEngine, why: str | None) -> None:
    with pytest.raises(ModelError, match=rf"ended an answer after 1 tokens by itself \({why}\)"):
        engine._completion(3, answer(-0.5, finish=why), b"proof")


def test_an_answer_is_given_under_its_own_key(engine: VllmEngine) -> None:
    made = engine._completion(3, answer(-0.5, -1.5), b"proof")
    assert (made.key, made.logprobs, made.finish, made.proof) == (8, [-0.5, -1.5], "length", b"proof")
    assert engine.running == 0
