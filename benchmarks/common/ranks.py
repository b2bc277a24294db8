"""Ranks of one trainer as forks of this process: imports are paid once, and results come back as JSON."""

import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from shoal.devices import CPU
from shoal.errors import BenchError
from shoal.roles.rank_group import rank_environment
from shoal.train.distributed import World, joined_world

Work = Callable[[World], Any]


def forked_ranks(count: int, work: Work) -> list[Any]:
    """What `work` returns on each of `count` ranks on gloo; BenchError if one of them fails."""
    meeting = Path(tempfile.mkdtemp(prefix="shoal-ranks-"))
    pipes = [os.pipe() for _ in range(count)]
    places = [rank_environment(rank, count, meeting / "store") for rank in range(count)]
    children = [os.fork() or _run(place, work, pipe) for place, (_, pipe) in zip(places, pipes, strict=True)]
    found = []
    for _, writing in pipes:
        os.close(writing)
    for reading, _ in pipes:
        with os.fdopen(reading, "rb") as pipe:
            found.append(pipe.read())
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    shutil.rmtree(meeting, ignore_errors=True)
    if any(codes):
        raise BenchError(f"ranks: they ended with {codes}: {b' '.join(found).decode()[-3000:]}")
    return [json.loads(data) for data in found]


def _run(environment: dict[str, str], work: Work, pipe: int) -> NoReturn:
    """In the forked process: does its part of the work."""
    os.environ |= environment
    code = 1
    try:
        with joined_world(CPU) as world:
            said = json.dumps(work(world))
        code = 0
    except BaseException:
        said = traceback.format_exc()
    with suppress(OSError):
        data = said.encode()
        while data:
            data = data[os.write(pipe, data) :]
    os._exit(code)
