"""Which files are computed again: as many as the rate says, and nobody can tell which."""

import hashlib

import pytest

from shoal.config import AuditConfig
from shoal.validate.audit import Audits

HASHES = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(4000)]


def drawn(config: AuditConfig, secret: bytes | None = b"secret", node: str = "a") -> list[bool]:
    audits = Audits(config, secret)
    return [audits.drawn(node, sha256) for sha256 in HASHES]


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_the_rate_is_kept(rate: float) -> None:
    share = sum(drawn(AuditConfig(rate=rate, probation=0))) / len(HASHES)
    assert abs(share - rate) < 4 * (rate * (1 - rate) / len(HASHES)) ** 0.5


def test_rate_one_draws_every_file_and_rate_zero_none_not_even_on_probation() -> None:
    assert all(drawn(AuditConfig(rate=1.0, probation=0)))
    assert not any(drawn(AuditConfig(rate=0.0, probation=20)))


def test_another_secret_draws_other_files() -> None:
    config = AuditConfig(rate=0.5, probation=0)
    same = sum(a == b for a, b in zip(drawn(config, b"one"), drawn(config, b"two"), strict=True))
    assert abs(same / len(HASHES) - 0.5) < 0.04
    assert drawn(config, None) != drawn(config, None), "every process has a secret of its own"


def test_the_draw_is_about_the_file_and_not_about_who_sends_it() -> None:
    config = AuditConfig(rate=0.5, probation=0)
    assert drawn(config, node="a") == drawn(config, node="b")


def test_the_first_files_of_each_node_are_all_drawn() -> None:
    audits = Audits(AuditConfig(rate=0.01, probation=30), b"secret")
    for node in ("a", "b"):
        found = [audits.drawn(node, sha256) for sha256 in HASHES[:1000]]
        assert all(found[:30])
        assert sum(found[30:]) < 40
