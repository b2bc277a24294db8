"""A signed request is good once, for one server, at one time, as it is."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crypto.keys import Key
from shoal.crypto.signed_request import (
    BODY,
    EMPTY,
    NONCE,
    RECIPIENT,
    REMEMBER_S,
    SIGNATURE,
    TIME,
    WINDOW_S,
    Nonces,
    Recipient,
    RequestRefused,
    Signed,
    check_request,
    sign_request,
)

NODE, COORDINATOR, TRAINER = (Key(bytes([number]) * 32) for number in (1, 2, 3))
HERE = Recipient(COORDINATOR.address, "test")
NOW = 1_800_000_000.0
TARGET = "/v1/files?first=0&last=2"


def headers(now: float = NOW) -> dict[str, str]:
    return sign_request(NODE, "GET", TARGET, EMPTY, HERE, now)


def check(given: dict[str, str], method: str = "GET", target: str = TARGET, now: float = NOW) -> Signed:
    return check_request(given, method, target, HERE, now)


def test_the_node_is_who_the_signature_says() -> None:
    assert check(headers()).node == NODE.address


@pytest.mark.parametrize(
    ("name", "value"),
    [(TIME, str(int(NOW * 1000) + 1)), (NONCE, "0" * 32), (BODY, "0" * 64)],
)
def test_a_changed_line_makes_it_somebody_elses(name: str, value: str) -> None:
    assert check(headers() | {name: value}).node != NODE.address


@pytest.mark.parametrize(("method", "target"), [("DELETE", TARGET), ("GET", "/v1/files?first=0&last=3"), ("GET", "/")])
def test_another_method_or_path_makes_it_somebody_elses(method: str, target: str) -> None:
    assert check(headers(), method, target).node != NODE.address


def test_a_request_to_another_server_is_refused() -> None:
    meant = sign_request(NODE, "GET", TARGET, EMPTY, Recipient(TRAINER.address, "test"), NOW)
    with pytest.raises(RequestRefused, match="this server is 0x"):
        check(meant)
    assert check(meant | {RECIPIENT: COORDINATOR.address}).node != NODE.address


@pytest.mark.parametrize(("off_s", "words"), [(-75, "75 s behind"), (300, "300 s ahead of"), (86400, "86400 s ahead")])
def test_a_clock_that_is_off_is_told_by_how_much(off_s: float, words: str) -> None:
    with pytest.raises(RequestRefused, match=words) as caught:
        check(headers(NOW + off_s))
    assert caught.value.code == "clock"


@given(st.floats(-WINDOW_S + 0.01, WINDOW_S - 0.01))
def test_a_clock_that_is_a_little_off_does_not_matter(off_s: float) -> None:
    assert check(headers(NOW + off_s)).node == NODE.address


@given(st.sampled_from([TIME, NONCE, RECIPIENT, BODY, SIGNATURE]), st.text(max_size=140))
def test_whatever_stands_in_a_header_is_refused_or_somebody_elses(name: str, value: str) -> None:
    try:
        node = check(headers() | {name: value}).node
    except RequestRefused as refused:
        node = refused.code
    assert node != NODE.address
    assert node.startswith(("0x", "unsigned", "forged", "clock", "recipient"))


def test_a_nonce_is_remembered_for_longer_than_its_signature_is_valid() -> None:
    nonces = Nonces()
    early = check(headers(NOW + WINDOW_S - 1))  # a clock that is ahead
    nonces.use(early)
    for second in range(0, int(REMEMBER_S) * 2, 7):
        now = NOW + second
        nonces.forget(now)
        if abs(early.time - now) <= WINDOW_S:
            with pytest.raises(RequestRefused, match="was used before"):
                nonces.use(early)
    assert len(nonces) == 0


def test_a_clock_that_is_set_back_makes_no_nonce_good_again() -> None:
    nonces = Nonces()
    first = check(headers())
    nonces.use(first)
    nonces.forget(NOW + REMEMBER_S + 1)
    assert len(nonces) == 0
    with pytest.raises(RequestRefused, match="was used before"):
        nonces.use(first)


def test_checking_is_cheap() -> None:
    """Well under a millisecond, or a thousand nodes keep a core busy with nothing else."""
    signed = headers()
    began = time.process_time()
    for _ in range(200):
        check(signed)
    assert (time.process_time() - began) / 200 < 2e-3
