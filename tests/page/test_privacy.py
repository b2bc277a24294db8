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
        ("peer:10.1.2.3:80 is away", "peer:[address] is away"),
        ("lost 10.1.2.3.", "lost [address]."),
        ("from ::ffff:10.0.0.1, again", "from [address], again"),
        ("from 0:0:0:0:0:ffff:10.0.0.1", "from [address]"),
        ("peer:64:ff9b::192.0.2.33", "peer:[address]"),
        ("peer::ffff:10.0.0.1", "peer[address]"),
        ("peer:2001:db8::1", "peer:[address]"),
        ("database postgresql://me@db.internal/x, store s3://bucket/folder", "database [address], store [address]"),
        ("release 1.2.3.4.5", "release 1.2.3.4.5"),
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


@given(st.ip_addresses(), st.text(alphabet="abc ,;", max_size=5), st.sampled_from([" ", " peer:", " at=", " ("]))
def test_no_network_address_is_ever_shown(address: object, around: str, before: str) -> None:
    assert str(address) not in public_text(f"{around}{before}{address} {around}") or str(address) == "::"


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:", "64:ff9b::", "0:0:0:0:0:ffff:", "2001:db8::a:"]))
def test_an_ipv4_address_inside_an_ipv6_address_is_masked_with_it(address: object, prefix: str) -> None:
    assert public_text(f"from {prefix}{address}, again") == "from [address], again"
