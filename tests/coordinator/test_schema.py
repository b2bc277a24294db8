"""schemathesis on the OpenAPI description: whatever it makes up is answered as described, and never with a 5xx."""

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from shoal.crypto.keys import Key
from shoal.crypto.signed_request import sign_request
from tests.support.coordinator_in_process import HERE, TRAINER, VALIDATOR, World, key_of, world_at

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


class Signing(requests.auth.AuthBase):
    """Signs whatever is sent, so that it comes further than the door."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        data = body.encode() if isinstance(body, str) else body
        assert isinstance(data, bytes)
        digest = hashlib.sha256(data).hexdigest()
        assert request.method
        signed = sign_request(self.key, request.method, request.path_url, digest, HERE, time.time())
        request.headers.update(signed)
        return request


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path = tmp_path_factory.mktemp("schema")
    with world_at(path, f"sqlite:///{path / 'state.db'}") as world:
        world.announce()
        world.hand_in("a", world.take("a"))
        _ = world.validator
        yield world


def test_the_api_is_what_its_description_says(served: World) -> None:
    description = schemathesis.openapi.from_url(f"{served.url}/v1/openapi.json")
    signers = [Signing(key) for key in (key_of("a"), VALIDATOR, TRAINER)]
    tested = 0
    for result in description.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()

        @settings(max_examples=8, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
        @given(case=operation.as_strategy(), signer=st.sampled_from(signers))
        def attack(case: Any, signer: Signing) -> None:
            case.call_and_validate(auth=signer, checks=CHECKS)

        attack()
        tested += 1
    assert tested == 32
