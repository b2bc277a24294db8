"""One world and one honest submission for all checks."""

import pytest

from shoal.protocol.submission import Submission, groups_with_signal
from tests.support.model_and_checks import World, build_world


@pytest.fixture(scope="session")
def world() -> World:
    return build_world("short")


@pytest.fixture(scope="session")
def honest(world: World) -> Submission:
    """Two groups of eight, in both of which rewards differ."""
    found = (world.honest(submission=number) for number in range(100))
    return next(file for file in found if groups_with_signal(file) == 2)
