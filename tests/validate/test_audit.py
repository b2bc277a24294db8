"""Which files are computed again: as many as the rate says, and nobody can tell which."""

import hashlib

import pytest

from shoal.config import AuditConfig
from shoal.validate.audit import COMPARED, Audits
from shoal.validate.numerics.alternative_names import FP8, INT8, OLDER, shift_bet

HASHES = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(4000)]


def drawn(config: AuditConfig, secret: bytes | None = b"secret", node: str = "a") -> list[bool]:
    audits = Audits(config, secret)
    return [audits.drawn(node, sha256, 0) for sha256 in HASHES]


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
        found = [audits.drawn(node, sha256, 0) for sha256 in HASHES[:1000]]
        assert all(found[:30])
        assert sum(found[30:]) < 40


def test_a_step_with_an_alarm_has_every_file_drawn_from_then_on_and_no_other_step_has() -> None:
    audits = Audits(AuditConfig(rate=1e-12, probation=1), b"secret")
    for node in ("cheat", "cheat", "other", "other"):
        audits.drawn(node, HASHES[0], 4)
    audits.alarm("cheat", 5)
    assert [audits.drawn("other", HASHES[1], step) for step in (4, 5, 6)] == [False, True, False]


def test_a_node_on_probation_raises_no_alarm() -> None:
    """All of its files are drawn, so none passed unseen; and fresh keys must not have every file of a step drawn."""
    audits = Audits(AuditConfig(rate=1e-12, probation=2), b"secret")
    for node in ("fresh", "fresh", "other", "other"):
        audits.drawn(node, HASHES[0], 4)
    audits.alarm("fresh", 5)
    assert not audits.drawn("other", HASHES[1], 5)


def test_spots_are_as_many_as_asked_all_alike_and_unforeseen() -> None:
    """Of answers of one length, each is as likely as any other; one may be drawn by tokens and by answers."""
    config = AuditConfig(rate=0.1, spot_share=0.25)
    audits = Audits(config, b"secret")
    found = [audits.spot(sha256, [5] * 8) for sha256 in HASHES]
    assert all(1 <= len(spot) <= 2 and spot == sorted(set(spot)) for spot in found)
    counts = [sum(n in spot for spot in found) / len(HASHES) for n in range(8)]
    expected = 1 - (1 - 1 / 8) ** 2
    assert all(abs(share - expected) < 0.03 for share in counts)
    assert found != [Audits(config, b"another").spot(sha256, [5] * 8) for sha256 in HASHES]


def test_half_of_the_spots_are_drawn_by_tokens_and_half_by_answers() -> None:
    """A long answer is drawn as often as its tokens are, and a short one is not overlooked."""
    audits = Audits(AuditConfig(rate=0.1, spot_share=0.02), b"secret")
    lengths = [1] * 50 + [950] + [1] * 49
    found = [audits.spot(sha256, lengths) for sha256 in HASHES]
    long = sum(50 in spot for spot in found) / len(HASHES)
    short = sum(3 in spot for spot in found) / len(HASHES)
    assert abs(long - (1 - (1 - 950 / 1049) * (1 - 1 / 100))) < 0.02
    assert abs(short - (1 - (1 - 1 / 1049) * (1 - 1 / 100))) < 0.007


def test_each_spot_is_drawn_from_a_stretch_of_its_own() -> None:
    audits = Audits(AuditConfig(rate=0.1, spot_share=0.5), b"secret")
    for sha256 in HASHES[:500]:
        spot = audits.spot(sha256, [7] * 16)
        assert all(any(4 * part <= n < 4 * part + 4 for n in spot) for part in range(4))


def test_spots_of_files_that_are_not_drawn_do_not_depend_on_the_draw_of_files() -> None:
    """One number for both would leave the answers that go with high numbers unseen."""
    audits = Audits(AuditConfig(rate=0.5, spot_share=0.1, probation=0), b"secret")
    left = [audits.spot(sha256, [3] * 4) for sha256 in HASHES if not audits.drawn("a", sha256, 0)]
    expected = 1 - (1 - 1 / 4) ** 2
    assert all(abs(sum(n in spot for spot in left) / len(left) - expected) < 0.05 for n in range(4))


def test_a_file_smaller_than_the_spot_is_seen_whole_and_rate_zero_sees_nothing() -> None:
    assert Audits(AuditConfig(rate=0.1, spot_share=0.9), b"secret").spot(HASHES[0], [4, 9, 1]) == [0, 1, 2]
    assert Audits(AuditConfig(rate=0.1, spot_share=0.1), b"secret").spot(HASHES[0], [4, 9]) == [0, 1]
    assert Audits(AuditConfig(rate=0.0, spot_share=0.9), b"secret").spot(HASHES[0], [4, 9, 1]) == []
    assert Audits(AuditConfig(rate=0.1, spot_share=0.0), b"secret").spot(HASHES[0], [4, 9, 1]) == []


def compared(won: dict[str, float], shift_rate: float, probation: int = 0) -> list[list[str]]:
    """What the files of a node are compared with against which bets have won this."""
    audits = Audits(AuditConfig(probation=probation, shift_rate=shift_rate), b"secret")
    for sha256 in HASHES[: probation + 1]:
        audits.drawn("a", sha256, 0)
    return [audits.alternatives("a", sha256, won) for sha256 in HASHES]


def test_files_are_compared_with_what_most_speaks_for_and_now_and_then_with_anything() -> None:
    won = {shift_bet(INT8): -4.0, shift_bet(OLDER): -1.0, shift_bet(FP8): -2.0}
    found = [names[0] for names in compared(won, shift_rate=1.0)]
    share = {name: found.count(name) / len(found) for name in COMPARED}
    assert share[OLDER] == pytest.approx(3 / 4 + 1 / 12, abs=0.03)
    assert share[INT8] == pytest.approx(1 / 12, abs=0.02)
    assert share[FP8] == pytest.approx(1 / 12, abs=0.02)


def test_all_files_of_a_suspected_node_are_compared_and_the_usual_share_of_any_other() -> None:
    for suspected, share in ((0.5, 1.0), (-0.5, 0.1)):
        found = compared({shift_bet(INT8): suspected}, shift_rate=0.1)
        assert sum(map(len, found)) / len(found) == pytest.approx(share, abs=0.02)
    assert all(compared({}, probation=len(HASHES), shift_rate=0.1))
    assert not any(compared({shift_bet(INT8): 9.0}, shift_rate=0.0)), "a run that compares nothing compares nothing"
