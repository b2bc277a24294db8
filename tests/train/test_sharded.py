"""Ranks train as one process does, whatever they are dealt, and go on after a stop with any number of ranks."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.architectures import save_random

pytestmark = pytest.mark.timeout(900)

Claims = dict[str, Any]


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Claims:
    """What two and three ranks did, and one process beside them, all tried in one go."""
    scratch = tmp_path_factory.mktemp("ranks")
    model = save_random(scratch / "model", "llama", num_key_value_heads=2, tie_word_embeddings=True)
    command = [sys.executable, "-m", "tests.train.sharded_claims", str(model), str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: Claims = json.loads(done.stdout)
    return found


def gap(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    assert one.keys() == other.keys()
    return max(abs(a - b) for name in one for a, b in zip(one[name], other[name], strict=True))


@pytest.mark.parametrize("which", ["odd", "several", "sparing", "adapters"])
def test_two_ranks_learn_what_one_process_does(claims: Claims, which: str) -> None:
    """Also from an odd number of groups, from one that leaves a rank nothing to do, in several optimizer steps, and
    with activations and moments that are kept elsewhere, and adapters instead of all weights."""
    ranks, alone = claims["ranks"][0][which], claims["alone"][which]
    assert gap(ranks["weights"], alone["weights"]) < 1e-6
    for said, expected in zip(ranks["said"], alone["said"], strict=True):
        assert said == pytest.approx(expected, abs=1e-5)
        assert said[:2] == [3 if which == "several" else 1, 0]


def test_each_rank_holds_half_of_the_training_state(claims: Claims) -> None:
    whole = claims["alone"]["odd"]["bytes"]
    for rank in claims["ranks"]:
        for kind in ("weights", "moments", "reference"):
            assert rank["odd"]["bytes"][kind] == pytest.approx(whole[kind] / 2, rel=0.01)


def test_sparing_memory_changes_no_weight(claims: Claims) -> None:
    assert claims["alone"]["sparing"]["weights"] == claims["alone"]["plain"]["weights"]


def test_what_is_not_finite_on_one_rank_is_skipped_on_all_and_the_next_step_is_fine(claims: Claims) -> None:
    for rank in claims["ranks"]:
        assert rank["poisoned"] == {"skipped": 1, "same": True, "then": [0, 1]}


def test_files_that_any_rank_finds_off_are_named_on_rank_0_and_change_nothing(claims: Claims) -> None:
    assert claims["ranks"][0]["turned_down"] == {"off": [2, 5], "same": True}


def test_ranks_that_disagree_on_the_config_stop_with_the_field_and_both_values(claims: Claims) -> None:
    for rank in claims["ranks"]:
        assert rank["config"].startswith(
            "trainer: rank 1 has another config than rank 0: train.lr = 0.002 there and 0.001 on rank 0; give all"
        )


def test_ranks_wait_for_a_rank_0_that_needs_long_to_join_the_run_and_to_load_the_model(claims: Claims) -> None:
    assert claims["late"] == [True, True]


def test_a_run_of_two_ranks_goes_on_with_one_and_then_with_three(claims: Claims) -> None:
    assert gap(claims["third"][0]["weights"], claims["whole"]) < 1e-6
    assert claims["third"][0]["damaged"] == []


def test_a_version_has_the_same_files_however_many_ranks_wrote_them(claims: Claims) -> None:
    files = claims["alone"]["published"]
    assert len(files) == 6, "five files and an index: the third round leaves one rank nothing to write"
    assert claims["ranks"][0]["published"] == files


def test_bfloat16_is_computed_with_float32_master_weights(claims: Claims) -> None:
    found = claims["ranks"][0]["bfloat16"]
    assert (found["dtypes"], found["reference"]) == (["torch.float32"], ["torch.bfloat16"])
    assert [said[:2] for said in found["said"]] == [[1, 0], [1, 0]]
    assert any(value != round(value, 2) for value in found["weights"]["model.norm.weight"])


def test_adapters_are_sharded_with_their_blocks_and_need_no_second_model(claims: Claims) -> None:
    whole = claims["alone"]["adapters"]
    assert all(name.endswith(("lora_A", "lora_B")) for name in whole["weights"])
    assert whole["said"][0][3] == 0, "the policy starts as its reference"
    assert whole["said"][1][3] > 0
    assert whole["bytes"]["reference"] == 0
    assert whole["bytes"]["moments"] < 0.5 * whole["bytes"]["weights"]
    for rank in claims["ranks"]:
        for kind in ("weights", "moments"):
            assert rank["adapters"]["bytes"][kind] == pytest.approx(whole["bytes"][kind] / 2, rel=0.02)
    found = claims["ranks"][0]["adapters_bfloat16"]
    assert found["dtypes"] == ["torch.bfloat16", "torch.float32"], "the base has no master weights, adapters have"
    assert [said[:2] for said in found["said"]] == [[1, 0], [1, 0]]
