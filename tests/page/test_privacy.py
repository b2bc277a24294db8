"""No page shows where a machine is: addresses and directories are masked in every text of a role or a stranger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.page.privacy import public_text


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("serving at http://127.0.0.1:7000, 21 MB", "serving at [address], 21 MB"),
        ("joining https://run.example.org:7000/v1", "joining [address]"),
        ("lost 203.0.113.9:51234 again", "lost [address] again"),
        ("from [2001:db8::1]:443", "from [address]"),
        ("from 2001:db8:0:0:0:0:2:1 today", "from [address] today"),
        ("from fe80::1%eth0", "from [address]"),
        ("see /home/me/runs/x/logs/page.log", "see page.log"),
        ("see ~/runs/x.log", "see x.log"),
        ("at 12:03:44 submission 12/3 of step 3", "at 12:03:44 submission 12/3 of step 3"),
        ("evidence/step-000000-0003.json", "evidence/step-000000-0003.json"),
        ("shoal 0.1.0, entropy 0.3.", "shoal 0.1.0, entropy 0.3."),
        ("two\nlines \x1b[31m", "two lines [31m"),
    ],
)
def test_text_is_shown_without_addresses_and_directories(said: str, shown: str) -> None:
    assert public_text(said) == shown


@given(st.ip_addresses(), st.text(alphabet="abc ,;", max_size=5))
def test_no_network_address_is_ever_shown(address: object, around: str) -> None:
    assert str(address) not in public_text(f"{around} {address} {around}") or str(address) == "::"
