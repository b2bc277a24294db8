"""Rubbish of all kinds through the reader and the checks: refused with a reason, never a crash, never an accept.

With tests/toploc/test_fuzz.py, which throws 125,000 rubbish proofs at the verifier, these are the fuzz of everything
that a stranger's file is made of.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from shoal.errors import RolloutError
from shoal.protocol.submission import Submission, groups_with_signal, write_rollouts
from shoal.validate.checks.proofs import check_computation, check_lengths
from shoal.validate.recompute import replay
from tests.support.model_and_checks import World

FILES = 600
PROOFS = 2000


def bits_flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def footer_bits_flipped(data: bytes, rng: random.Random) -> bytes:
    """Most of a file is pages, whose checksums are checked; what decides is the footer."""
    size = int.from_bytes(data[-8:-4], "little")
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        changed[len(data) - 8 - rng.randrange(size)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] if rng.random() < 0.5 else data[:at] + data[rng.randrange(at, len(data)) + 1 :]


def chunks_swapped(data: bytes, rng: random.Random) -> bytes:
    a, b, c = sorted(rng.sample(range(4, len(data) - 8), 3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def bytes_overwritten(data: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(data)), rng.choice([1, 4, 64])
    return data[:at] + rng.choice([rng.randbytes(size), bytes(size), b"\xff" * size]) + data[at + size :]


@pytest.mark.parametrize("change", [bits_flipped, footer_bits_flipped, cut, chunks_swapped, bytes_overwritten])
def test_a_file_with_other_bytes_is_refused_or_says_the_same(
    world: World, honest: Submission, change: Callable[[bytes, random.Random], bytes]
) -> None:
    """Some bytes of Parquet mean nothing (statistics, the writer's name): what is then read is what was written."""
    rng = random.Random(change.__name__)
    good = write_rollouts(honest, groups_with_signal(honest))
    refused = 0
    for _ in range(FILES):
        data = change(good, rng)
        try:
            found = world.read(data, honest.lease)
        except RolloutError:
            refused += 1
            continue
        assert found == honest or world.verdict(data, honest.lease) is not None
    assert refused > FILES / 4


def test_proofs_with_other_bytes_are_refused(world: World, honest: Submission) -> None:
    rng = random.Random(0)
    policy, thresholds = world.checks.policy, world.config.audit.thresholds
    found = replay(policy, honest.rollouts, None, 1.0, 4096)
    for _ in range(PROOFS):
        number = rng.randrange(len(found))
        sample = honest.rollouts[number]
        changed = rng.choice([bits_flipped, cut, chunks_swapped, bytes_overwritten])(sample.proof, rng)
        if changed[:3] + changed[4:] == sample.proof[:3] + sample.proof[4:]:
            continue  # the same, or another last bit in every value, as rounding does
        lie = replace(honest, rollouts=[replace(sample, proof=changed)])
        finding = check_lengths(lie, policy.hidden_size) or check_computation(lie, [found[number]], thresholds)
        assert finding is not None
        assert finding.check == "computation"
