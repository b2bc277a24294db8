"""One browser for all tests of a process, and one large run; both cost seconds to make."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import BenchError
from tests.support.axe import axe_source
from tests.support.browser import Browser
from tests.support.large_run import write_large_run
from tests.support.page_in_process import serving_pages


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        started = Browser()
    except BenchError as error:
        pytest.skip(str(error))
    with started:
        yield started


@pytest.fixture(scope="session")
def axe() -> str:
    """The accessibility audit as a script."""
    try:
        return axe_source()
    except BenchError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large_run(tmp_path_factory.mktemp("large") / "run")


@pytest.fixture(scope="session")
def large_pages(large_run: Path) -> Iterator[str]:
    with serving_pages(large_run) as url:
        yield url
