"""Versions of a simulation: its origin offers the packages that a run's publisher writes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shoal.crypto.keys import Key
from shoal.shardcast.format.store import Store
from shoal.shardcast.origin.publish import Publisher
from shoal.shardcast.origin.versions import FULL_EVERY, Versions
from shoal.simulate.broadcast import Origin
from shoal.simulate.events import Events
from shoal.simulate.inputs import Kind, Services, Training

pytest.importorskip("shoal.shardcast.delta.delta")


def random_bits() -> torch.Tensor:
    return torch.randint(-(1 << 15), 1 << 15, (1 << 16,), dtype=torch.int16)


WEIGHTS = random_bits()


def write_version(folder: Path, kind: Kind, share: float) -> Path:
    """A version of which this share of the weights is unlike those of any other."""
    folder.mkdir()
    changed = torch.where(torch.rand(len(WEIGHTS)) < share, random_bits(), WEIGHTS)
    weights = changed.float() if kind == "lora" else changed.view(torch.bfloat16)
    save_file({"w": weights}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(("kind", "share"), [("delta", 0.01), ("delta", 1.0), ("full", 0.01), ("lora", 0.01)])
def test_an_origin_offers_the_packages_that_a_publisher_writes(tmp_path: Path, kind: Kind, share: float) -> None:
    """Twice as many versions as there are between two full ones: small deltas, deltas that do not pay, and none."""
    size = 2.0 * len(WEIGHTS)
    origin = Origin(Events(), Services(), Training(1.0, 0.0, size, share * size, kind, keep=5))
    with Publisher(Store(tmp_path / "store"), Key(bytes.fromhex("11" * 32)), "run", keep=5) as publisher:
        versions = Versions(publisher, deltas=kind == "delta")
        for number in range(2 * FULL_EVERY + 1):
            versions.publish(number, write_version(tmp_path / f"v{number}", kind, share))
            if number:
                origin.publish(number)
            written = {(entry.number, entry.kind) for entry in publisher.entries}
            assert {(entry.number, entry.kind) for entry in origin.entries} == written
    assert any(entry.kind == "delta" for entry in origin.entries) == (kind == "delta" and share < 0.5)
