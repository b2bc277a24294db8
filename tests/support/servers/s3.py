"""A real S3-compatible server on this machine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from moto.server import ThreadedMotoServer


@contextmanager
def s3_server(*buckets: str) -> Iterator[str]:
    """The server's URL, with buckets whose objects anybody may read; credentials are in the environment meanwhile."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            for bucket in buckets:
                httpx2.put(f"{url}/{bucket}").raise_for_status()
                allowed = {
                    "Effect": "Allow",
                    "Principal": "*",
                    "Action": "s3:GetObject",
                    "Resource": f"arn:aws:s3:::{bucket}/*",
                }
                policy = {"Version": "2012-10-17", "Statement": [allowed]}
                httpx2.put(f"{url}/{bucket}?policy", content=json.dumps(policy)).raise_for_status()
            yield url
    finally:
        server.stop()
