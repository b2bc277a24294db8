"""Uploads on a real S3-compatible server: nodes send files there themselves, and what counts is what was settled."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from shoal.coordinator.uploads import Objects, incoming_name, object_name
from shoal.errors import ConfigError
from tests.support.coordinator_in_process import World, good_file, key_of, world_at
from tests.support.servers.s3 import s3_server
from tests.support.submissions import judge_formats

A = key_of("a")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server("uploads") as url:
        yield url


@pytest.fixture
def cloud(tmp_path: Path, s3: str) -> Iterator[World]:
    options = {"endpoint": s3, "region": "us-east-1"}
    swarm = {"store": f"s3://uploads/{tmp_path.name}", "store_options": options}
    with world_at(tmp_path, f"sqlite:///{tmp_path / 'state.db'}", swarm=swarm) as world:
        world.announce()
        yield world


def test_a_file_goes_by_the_object_store_to_the_trainer(cloud: World) -> None:
    lease = cloud.take("a")
    cloud.hand_in("a", lease)
    cloud.hand_in("a", lease)
    judge_formats(cloud.validator, 0, 2)
    assert [submission.lease for submission in cloud.trainer.accepted(0)] == [lease]
    cloud.trainer.forget(before=1)
    assert cloud.request(cloud.trainer._link.key, "GET", "/v1/files/0/0").status_code == 410


def test_what_was_sent_is_what_was_said_or_is_not_taken(cloud: World) -> None:
    lease = cloud.take("a")
    target = f"/v1/uploads/{lease.step}/{lease.submission}"
    data = good_file(lease)
    said = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "signal": 2}
    url = cloud.request(A, "POST", target, said).json()["url"]
    for sent, reason in ((None, "is not there"), (b"x", "has 1 bytes"), (bytes(len(data)), "has hash")):
        if sent is not None:
            assert httpx2.put(url, content=sent).status_code == 200
        answer = cloud.request(A, "POST", f"{target}/done", said)
        assert (answer.status_code, reason in answer.text) == (400, True), answer.text
    assert cloud.trainer.count(lease.step).seen == 0
    assert httpx2.put(url, content=data).status_code == 200
    assert cloud.request(A, "POST", f"{target}/done", said).json() == {"changed": True}


def test_a_url_is_of_no_use_to_change_what_was_taken(cloud: World) -> None:
    lease = cloud.take("a")
    target = f"/v1/uploads/{lease.step}/{lease.submission}"
    data = good_file(lease)
    said = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "signal": 2}
    url = cloud.request(A, "POST", target, said).json()["url"]
    httpx2.put(url, content=data)
    cloud.request(A, "POST", f"{target}/done", said)
    assert httpx2.put(url, content=b"something else").status_code == 200
    judge_formats(cloud.validator, 0, 2)
    assert len(list(cloud.trainer.accepted(lease.step))) == 1


def test_another_nodes_lease_gives_no_url(cloud: World) -> None:
    lease = cloud.take("a")
    cloud.store(key_of("b"))
    said = {"sha256": "0" * 64, "size": 1, "signal": 0}
    answer = cloud.request(key_of("b"), "POST", f"/v1/uploads/{lease.step}/{lease.submission}", said)
    assert answer.status_code == 403
    large = said | {"size": cloud.coordinator.terms.max_upload + 1}
    assert cloud.request(A, "POST", f"/v1/uploads/{lease.step}/{lease.submission}", large).status_code == 413


def test_a_directory_takes_files_through_the_coordinator_alone(small_world: World) -> None:
    small_world.announce()
    lease = small_world.take("a")
    target = f"/v1/uploads/{lease.step}/{lease.submission}"
    said = {"sha256": "0" * 64, "size": 1, "signal": 0}
    assert small_world.request(A, "POST", target, said).json() == {"url": None, "done": False}
    assert small_world.request(A, "POST", f"{target}/done", said).status_code == 404


def test_names_keep_apart_what_is_not_the_same() -> None:
    assert object_name(1, 2, "ab") == "step-000001/0002-ab.parquet"
    assert incoming_name(1, 2, "ab") == "incoming/step-000001/0002-ab.parquet"


def test_a_store_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="give a directory or s3://BUCKET"):
        Objects("ftp://x")
