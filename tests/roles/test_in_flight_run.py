"""A run whose answers go on with newer versions while they grow: files of several versions, all of them right."""

from pathlib import Path

from tests.support.in_flight_run import (
    assert_files_of_several_versions_pass,
    in_flight_run,
    version_comes_in_flight,
)
from tests.support.roles_in_process import make_worker, train, working


def test_a_run_goes_to_its_end_with_files_of_several_versions_and_each_passes_every_check(
    tmp_path: Path, tiny_dir: Path
) -> None:
    run = in_flight_run(tmp_path / "run", tiny_dir)
    worker = make_worker(run)
    with version_comes_in_flight(run, worker), working(run, worker):
        train(run)
    assert_files_of_several_versions_pass(run)
