"""A relay in an object store: keeps a run's versions in S3, R2 or the like, where others read them with plain GETs."""

from collections.abc import Sequence

from shoal.client.weight_source import noting
from shoal.roles.relay import at_work, fetching
from shoal.roles.serving import until_stopped_telling
from shoal.roles.session import JoinOptions
from shoal.rundir import RunDir
from shoal.shardcast.format.store import Store
from shoal.shardcast.serve.bucket import Bucket, Mirror, keep_mirroring


def start_bucket_relay(run: RunDir, sources: Sequence[str], options: JoinOptions, bucket: Bucket, url: str) -> None:
    """Keeps a run's versions in an object store, from which others fetch them at `url`, until stopped."""
    with at_work(run) as (status, metrics):
        store = Store(run.path / "relay")
        with fetching(run, store, options, sources, url, url, status, metrics) as puller:
            mirror = Mirror(store, bucket, puller.origin, run.config.name)
            until_stopped_telling(
                lambda: keep_mirroring(mirror, noting(metrics)),
                lambda: status.working(f"keeping {mirror}"),
            )
        status.done(f"kept {mirror}")
