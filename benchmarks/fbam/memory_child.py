"""Fresh process that measures one gradient: its peak of resident memory above what was resident before."""

import json
import sys
from pathlib import Path

import torch

from benchmarks.fbam.streaming import MEMORY_BATCH, MODEL, PatternStream
from shoal.fbam import build_model, streamed_gradient


def reset_peak() -> int:
    """Forgets the peak so far, be it that of imports or of the process that started this one, and gives what is
    resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    torch.set_num_threads(1)
    told = json.load(sys.stdin)
    model = build_model(MODEL, seed=0)
    streamed_gradient(model, PatternStream(2, batch=1), 1)  # loads kernels, and allocates what weights need anyway
    before = reset_peak()
    streamed_gradient(model, PatternStream(told["length"], MEMORY_BATCH), told["chunk"] or told["length"])
    sys.stdout.write(json.dumps({"bytes": status_bytes("VmHWM") - before}))


if __name__ == "__main__":
    main()
