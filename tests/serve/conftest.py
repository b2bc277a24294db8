"""Answers of a random model end by chance: here they go on until their length limit, or until they are stopped."""

from collections.abc import Iterator

import pytest

from shoal.models import load


@pytest.fixture(autouse=True, scope="module")
def _endless() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_eos_ids", lambda *_: frozenset({1 << 20}))
        yield
