"""Fresh process that measures one gradient: its peak of resident memory above what was resident before."""

import json
import os
import resource
import sys
from pathlib import Path

import torch

from benchmarks.fbam.streaming import MODEL, PatternStream
from shoal.fbam import build_model, streamed_gradient


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    torch.set_num_threads(1)
    told = json.load(sys.stdin)
    model = build_model(MODEL, seed=0)
    streamed_gradient(model, PatternStream(2, batch=1), 1)  # loads kernels, and allocates what weights need anyway
    before = resident_bytes()
    streamed_gradient(model, PatternStream(told["length"]), told["chunk"] or told["length"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(json.dumps({"bytes": peak - before}))


if __name__ == "__main__":
    main()
