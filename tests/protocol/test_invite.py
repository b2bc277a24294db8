"""An invite is worth something for one run of one coordinator, and nothing once a character of it is changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crypto.keys import Key
from shoal.errors import SwarmError
from shoal.protocol.invite import Invite
from shoal.protocol.run_card import Join

KEY, OTHER = Key(b"\1" * 32), Key(b"\2" * 32)
INVITE = Invite.make("test", KEY, 2_000_000_000)


def test_an_invite_survives_its_text_and_the_join_line() -> None:
    join = Join.parse(f"https://host:7000#{KEY.address}+{INVITE}")
    assert (join.url, join.coordinator) == ("https://host:7000", KEY.address)
    assert Invite.parse(join.invite) == INVITE
    assert INVITE.is_from("test", KEY.address)


def test_an_invite_of_another_run_or_coordinator_is_not_from_here() -> None:
    assert not INVITE.is_from("other", KEY.address)
    assert not INVITE.is_from("test", OTHER.address)
    assert not Invite.make("test", OTHER, 2_000_000_000).is_from("test", KEY.address)


@given(st.integers(0, len(str(INVITE)) - 1), st.sampled_from("0123456789abcdefXYZ._-+ \n\x1b"))
def test_a_changed_invite_is_refused_or_not_from_here(place: int, char: str) -> None:
    text = str(INVITE)
    changed = text[:place] + char + text[place + 1 :]
    if changed == text:
        return
    try:
        found = Invite.parse(changed)
    except SwarmError:
        return
    # Base64 has bits to spare in its last character: another text of the same invite.
    assert found == INVITE or not found.is_from("test", KEY.address)


@pytest.mark.parametrize("text", ["", "x", "0" * 32, f"{'0' * 32}.1.{'A' * 86}", "0" * 100_000])
def test_what_is_not_an_invite_is_told_before_anything_is_sent(text: str) -> None:
    with pytest.raises(SwarmError, match="is damaged"):
        Invite.parse(text)
    if text:
        with pytest.raises(SwarmError, match="is damaged"):
            Join.parse(f"https://host:7000#{KEY.address}+{text}")
