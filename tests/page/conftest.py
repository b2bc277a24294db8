"""One large run for all tests of a process: it costs seconds to make."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.large_run import write_large_run
from tests.support.page_in_process import serving_pages


@pytest.fixture(scope="session")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large_run(tmp_path_factory.mktemp("large") / "run")


@pytest.fixture(scope="session")
def large_pages(large_run: Path) -> Iterator[str]:
    with serving_pages(large_run) as url:
        yield url
