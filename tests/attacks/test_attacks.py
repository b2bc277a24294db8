"""Every attack is caught by the check that is there for it; honest work is not."""

import re
from pathlib import Path

import pytest
import torch

from shoal import toploc
from shoal.attacks import ATTACKS, attack_named
from shoal.attacks.texts import EditedTokens
from shoal.errors import ConfigError
from shoal.generate.engine import Completion, Request
from tests.support.model_and_checks import VERSIONS, World, build_world, lease_of, weights

DOCS = Path(__file__).parents[2] / "docs" / "validation.md"
LEASES = {"short": 3, "long": 2}
OTHER_DRAWS = {"sampling"}
OTHER_STATES = {"sampling", "logprobs", "computation"}
PROOF = {"computation"}
CAUGHT_BY = {
    "int8": OTHER_STATES,
    "int4": OTHER_STATES,
    "smaller_model": OTHER_STATES,
    "neighbour": OTHER_STATES,
    "older_version": OTHER_STATES,
    "small_model_text": OTHER_DRAWS,
    "best_of_n": OTHER_DRAWS,
    "edited_tokens": OTHER_DRAWS,
    "early_ending": OTHER_DRAWS,
    "temperature": OTHER_DRAWS,
    "top_k": OTHER_DRAWS,
    "cherry_picked_tasks": {"tasks"},
    "changed_prompt": {"tasks"},
    "false_reward": {"rewards"},
    "nudged_reward": {"rewards"},
    "false_advantage": {"rewards"},
    "false_logprobs": {"logprobs"},
    "anothers_file": {"format"},
    "anothers_answers": {"tasks"},
    "sent_twice": {"format"},
    "answered_twice": {"tasks"},
    "constant_proof": PROOF,
    "mean_proof": PROOF,
    "own_mean_proof": PROOF,
    "flipped_proof": PROOF,
    "swapped_proofs": PROOF,
    "missing_proof": PROOF,
    "extra_proof": PROOF | {"format"},
    "empty_proof": PROOF,
    "random_proof": PROOF,
    "out_of_bounds": {"format"},
    "not_a_number": {"format"},
    "wrong_types": {"format"},
    "nested_types": {"format"},
    "parquet_bomb": {"format"},
    "truncated": {"format"},
    "hidden_swap": OTHER_STATES,
    "claimed_swap": {"format"},
    "swap_beyond_the_step": {"format"},
    "swap_at_chosen_token": {"format"},
}


@pytest.fixture(scope="module", params=["short", "long"])
def world(request: pytest.FixtureRequest) -> World:
    return build_world(request.param)


@pytest.fixture(scope="module")
def honest_files(world: World) -> list[bytes]:
    return [world.file(world.maker(), lease_of(world, n)) for n in range(LEASES[world.kind])]


def files_of(world: World, attack: str) -> list[bytes]:
    """Files of version 1, by a worker that has served version 0 before."""
    maker = world.maker(attack)
    maker.policy.set_weights(weights(world.kind)[0], "version 0")
    maker.make(lease_of(world, 99, groups=1), VERSIONS[0])
    maker.policy.set_weights(weights(world.kind)[1], "version 1")
    leases = 1 if attack == "parquet_bomb" else LEASES[world.kind]
    return [world.file(maker, lease_of(world, n)) for n in range(leases)]


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_file_of_an_attacker_is_rejected_for_what_is_wrong_with_it(
    world: World, honest_files: list[bytes], attack: str
) -> None:
    if attack == "parquet_bomb" and world.kind == "long":
        pytest.skip("takes seconds to make, and is the same bomb")
    for number, (data, honest) in enumerate(zip(files_of(world, attack), honest_files, strict=False)):
        assert data != honest, "an attack that changes nothing proves nothing"
        finding = world.verdict(data, lease_of(world, number))
        assert finding is not None, f"file {number} of {attack} passed"
        assert finding.check in CAUGHT_BY[attack], str(finding)
    own = world.workers.weights()
    assert all(torch.equal(own[name], tensor) for name, tensor in weights(world.kind)[1].items()), "left in the model"


def test_an_attack_that_does_not_exist_is_named_with_its_nearest_neighbour() -> None:
    with pytest.raises(ConfigError, match="did you mean false_reward"):
        attack_named("fals_reward")
    assert attack_named("int8") is ATTACKS["int8"]


def test_every_attack_says_in_its_first_line_what_it_does() -> None:
    assert all(kind.__doc__ and kind.__doc__.strip() for kind in ATTACKS.values())


def test_the_documented_table_has_a_row_per_attack_with_the_checks_that_catch_it() -> None:
    section = DOCS.read_text().partition("\n## Attacks\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", section, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(ATTACKS)
    for name, caught_by in rows:
        assert set(re.findall(r"[a-z]+", caught_by)) <= CAUGHT_BY[name], name


def test_two_workers_of_one_attack_share_nothing(world: World) -> None:
    """Who has seen one version only has no older one to use."""
    files_of(world, "older_version")
    lease = lease_of(world)
    assert world.verdict(world.file(world.maker("older_version"), lease), lease) is None


@pytest.mark.parametrize("tokens", [[1], [9, 1], [9, 8, 1], [9], [9, 8], [9] * 12])
def test_an_edited_answer_is_another_one_that_ends_where_an_answer_may(tokens: list[int]) -> None:
    world = build_world("short")
    maker = world.maker("edited_tokens")
    assert isinstance(maker, EditedTokens)
    edited = maker.edited(Request((5,), 0, 0, 12), tokens)
    assert edited != tokens
    assert [token == 1 for token in edited[:-1]] == [False] * (len(edited) - 1)
    assert (edited[-1] == 1) == (tokens[-1] == 1)
    assert len(edited) <= 12


def test_the_constant_that_is_proven_is_one_of_the_largest_values() -> None:
    """Or else it would be caught for a slip of the forger's."""
    world = build_world("short")
    states_TD = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    honest = Completion(0, [5] * 40, [0.0] * 40, "length", toploc.build(states_TD), states_TD)
    proofs = toploc.decode(world.maker("constant_proof").prove(honest))
    assert len(proofs) == 2
    for proof, chunk in zip(proofs, torch.split(states_TD, 32), strict=True):
        largest = chunk.flatten().abs().topk(128).values.view(torch.int16).tolist()
        assert proof.degree == 0
        assert proof(17) in largest
