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
    model = build_model(MODEL, seed=0)

    def seconds_per_frame(length: int, chunk: int) -> float:
        began = time.process_time()  # of the processor: other work on the machine does not count
        streamed_gradient(model, PatternStream(length), chunk)
        return (time.process_time() - began) / (length * BATCH)

    seconds_per_frame(WARM_UP, CHUNK)
    found = {
        "full_512": seconds_per_frame(512, 512),
        "streamed_512": seconds_per_frame(512, CHUNK),
        "streamed_256": seconds_per_frame(256, CHUNK),
        "streamed_4096": seconds_per_frame(4096, CHUNK),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
