"""The published `toploc` package, timed from outside: one side of `python -m benchmarks toploc`.

A standalone script. The python of the package's own environment runs it (`validation.toploc`), so it imports nothing
of shoal, and they meet only in JSON lines on stdin and stdout:

    in   {"cpu": 0, "claimed": "/path.npy", "own": "/path.npy", "chunk": 32, "k": 128}   states as bits of bf16
    out  {"proofs": "ff..", "results": [[0, 0.5, 0.0], ..], "version": "0.1.6", ..}       of `own` against `claimed`
    in   {"time": "build", "repeats": 5}     or "verify", as often as wanted
    out  {"seconds": 0.02}                   the best of the repeats

Another line with states starts again; the end of stdin ends it. It is held on one processor, since its verification
starts as many threads as it sees processors. Of the forms its functions take, each gets the one it is fastest with.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    calls: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "time" in question:
            answer: dict[str, Any] = {"seconds": best(calls[question["time"]], question["repeats"])}
        else:
            if question["cpu"] is not None:  # before torch and toploc count the processors
                os.sched_setaffinity(0, {question["cpu"]})
            calls, answer = prepare(question)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def prepare(question: dict[str, Any]) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    import numpy as np
    import toploc  # type: ignore[import-not-found]
    import torch

    torch.set_num_threads(1)

    def load(path: str) -> torch.Tensor:
        return torch.from_numpy(np.load(path).view(np.int16)).view(torch.bfloat16)

    claimed, own = list(load(question["claimed"])), load(question["own"])
    shape = {"decode_batching_size": question["chunk"], "topk": question["k"], "skip_prefill": True}
    proofs = toploc.build_proofs_bytes(claimed, **shape)
    calls = {
        "build": lambda: toploc.build_proofs_bytes(claimed, **shape),
        "verify": lambda: toploc.verify_proofs_bytes(own, proofs, **shape),
    }
    results = [[r.exp_mismatches, r.mant_err_mean, r.mant_err_median] for r in calls["verify"]()]
    versions = {"version": toploc.__version__, "torch": torch.__version__}
    return calls, {"proofs": b"".join(proofs).hex(), "results": results, **versions}


def best(call: Callable[[], Any], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
