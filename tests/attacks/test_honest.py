"""An honest worker passes, however it computes."""

import pytest
import torch

from tests.support.model_and_checks import World, build_world, lease_of


@pytest.fixture(scope="module", params=["short", "long"])
def world(request: pytest.FixtureRequest) -> World:
    return build_world(request.param)


@pytest.mark.parametrize("max_batch", [1, 7, 64])
def test_any_batch_size_passes(world: World, max_batch: int) -> None:
    maker = world.maker(max_batch=max_batch)
    for number in range(3):
        lease = lease_of(world, number)
        assert world.verdict(world.file(maker, lease), lease) is None


def test_another_number_of_threads_passes(world: World) -> None:
    lease = lease_of(world)
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        data = world.file(world.maker(), lease)
    finally:
        torch.set_num_threads(before)
    assert world.verdict(data, lease) is None


def test_files_pass_side_by_side_alone_and_in_any_order(world: World) -> None:
    files = [world.honest(submission=number) for number in range(4)]
    assert list(world.checks.costly(files)) == [None] * 4
    assert list(world.checks.costly(files[::-1])) == [None] * 4
    assert [next(world.checks.costly([file])) for file in files] == [None] * 4


def test_a_cheater_beside_honest_files_is_the_only_one_rejected(world: World) -> None:
    files = [world.honest(submission=number) for number in range(3)]
    lease = lease_of(world, 9)
    files.insert(1, world.read(world.file(world.maker("best_of_n"), lease), lease))
    findings = list(world.checks.costly(files))
    assert [finding is None for finding in findings] == [True, False, True, True]


@pytest.mark.parametrize("budget", [96, 100_000])
def test_any_token_budget_passes(world: World, budget: int) -> None:
    config = world.config.model_copy(update={"audit": world.config.audit.model_copy(update={"token_budget": budget})})
    world.checks.config = config
    assert list(world.checks.costly([world.honest(), world.honest(submission=1)])) == [None, None]
    world.checks.config = world.config
