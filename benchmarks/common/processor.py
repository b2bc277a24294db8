"""One processor for a measurement, so that nothing moves while the clock runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_processor() -> Iterator[int | None]:
    """Holds this process on one processor, where the system can, with one thread, and names it for others."""
    if not hasattr(os, "sched_setaffinity"):
        yield None
        return
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    cpu = min(before)
    os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)
    try:
        yield cpu
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, before)
