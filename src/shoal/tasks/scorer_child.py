"""The process behind `Scorer`: reads answers, writes scores, and gives up all that it can do without before it begins.

It ends when its parent does: then there is nothing more to read, and a score that is under way is cut off by an alarm
that the kernel delivers even in the middle of a single long multiplication.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from typing import IO, Any

from shoal.config import TaskConfig
from shoal.tasks.build import build_source
from shoal.tasks.rewards import runs_programs
from shoal.tasks.scorer import MAX_ANSWER
from shoal.tasks.source import Score, part_of, score

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
LIMITS = {
    resource.RLIMIT_AS: 2 << 30,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_NPROC: 0,
}


def main() -> None:
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a scorer prints is no reply
    if not (first := requests.readline()):
        return  # who started this was killed before it said anything
    spec = json.loads(first)
    tasks = [TaskConfig.model_validate(task) for task in spec["tasks"]]
    # Sandboxes are made of processes and name spaces, which cannot be had by who has given them up.
    sandboxes = runs_programs(tasks)
    if not sandboxes:
        leave_network()
    source = build_source(tasks)
    confine(sandboxes)
    for line in requests:
        serve(json.loads(line), source, spec["score_s"], replies)


def serve(request: Any, source: Any, score_s: float, replies: IO[bytes]) -> None:
    """One line for having drawn the tasks, then one for each answer as soon as it is scored."""
    tasks = [part_of(source, name).task(request["split"], index) for name, index, _ in request["answers"]]
    _say(replies, "ready")
    for task, (_, index, answer) in zip(tasks, request["answers"], strict=True):
        if len(answer) > MAX_ANSWER:
            error = f"{task.source} task {index}: answer of more than {MAX_ANSWER} characters, which nobody scores"
            result = Score(None, error)
        else:
            signal.setitimer(signal.ITIMER_REAL, score_s + 1)
            result = score(source, task, answer)
            signal.setitimer(signal.ITIMER_REAL, 0)
        _say(replies, [result.reward, result.error, dict(result.parts), result.doubtful])


def confine(sandboxes: bool) -> None:
    """Gives up memory, processes, files and words that scoring does not need."""
    for limit, value in LIMITS.items():
        if sandboxes and limit == resource.RLIMIT_NPROC:
            continue
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def leave_network() -> None:
    """Moves into a network of its own with nothing in it, on Linux kernels that let anyone do so."""
    if sys.platform == "linux":
        unshare = ctypes.CDLL(None).unshare
        _ = unshare(CLONE_NEWUSER | CLONE_NEWNET) and unshare(CLONE_NEWNET)


def _say(replies: IO[bytes], message: object) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
