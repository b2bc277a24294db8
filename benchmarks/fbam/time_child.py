"""Fresh process that measures CPU seconds per frame of gradients, side by side, in one thread."""

import json
import sys
import time

import torch

from benchmarks.fbam.streaming import BATCH, CHUNK, MODEL, PatternStream
from shoal.fbam import build_model, streamed_gradient

WARM_UP = 128


def main() -> None:
    torch.set_num_threads(1)
    told = json.load(sys.stdin)
    model = build_model(MODEL, seed=0)

    def seconds_per_frame(length: int, chunk: int) -> float:
        began = time.process_time()  # of the processor: other work on the machine does not count
        streamed_gradient(model, PatternStream(length), chunk)
        return (time.process_time() - began) / (length * BATCH)

    seconds_per_frame(WARM_UP, CHUNK)  # loads kernels
    found = {
        "full": seconds_per_frame(told["full"], told["full"]),
        "streamed": seconds_per_frame(told["full"], CHUNK),
        "short": seconds_per_frame(told["short"], CHUNK),
        "long": seconds_per_frame(told["long"], CHUNK),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
