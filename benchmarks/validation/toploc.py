"""`python -m benchmarks toploc`: building and verifying proofs, against the published package `toploc` 0.1.6.

Both sides prove the same states, 1,024 tokens at three hidden sizes, and verify the proofs against states that differ
by 1 %, one thread each on the same processor, in turns. Before the clock runs, both must have made the same bytes and
found the same mismatches and errors. Ours also does what the other leaves out: signs, degree, collisions, the guess.

The package's wheel does not import on current torch, so it is built from its sources, once, in an environment of its
own. That takes some minutes and a C++ compiler.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.processor import one_processor
from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure
from benchmarks.peers.process import Peer, peer_python
from benchmarks.peers.toploc import best
from shoal import toploc
from shoal.errors import BenchError
from shoal.files import cache_dir
from shoal.process import SLEEP_WHEN_IDLE
from shoal.toploc.hidden_states import Bits

HIDDEN = (576, 2048, 5120)
TOKENS, CHUNK, K = 1024, 32, 128
NOISE = 0.01
BAR = 10.0

SCRIPT = Path(__file__).parents[1] / "peers" / "toploc.py"
BUILT = "toploc==0.1.6"
# What its build needs must be there before it; the build is told not to fetch a torch of its own.
REQUIREMENTS = ("torch==2.13.0", "numpy==2.4.6", "setuptools", "wheel", "ninja")
BUILD_S = 1800.0
PREPARE_S = 300.0
ROUND_S = 300.0


@dataclass(frozen=True, slots=True)
class Size:
    """Rounds, and the calls of each side in one: ours are shorter, so it makes more."""

    rounds: int
    peer: int
    ours: int


FULL = Size(rounds=9, peer=5, ours=40)
QUICK = Size(rounds=2, peer=1, ours=5)


def bench_toploc(quick: bool, progress: Progress) -> BenchResult:
    """Milliseconds of both sides at each hidden size, the best of the rounds."""
    size = QUICK if quick else FULL
    with progress.aside():
        peer = toploc_peer(cache_dir())
    ratios: dict[str, float] = {}
    values: dict[str, Figure] = {"tokens": TOKENS, "k": K}
    with tempfile.TemporaryDirectory(prefix="shoal-toploc-") as scratch, one_processor() as cpu, peer:
        for hidden in HIDDEN:
            progress.stage(f"hidden size {hidden}")
            claimed, own = states(hidden)
            values["toploc"] = _prepare(peer, Path(scratch), cpu, claimed, own)
            calls = _ours(claimed, own)
            for name, call in calls.items():
                theirs, ours = _in_turns(peer, name, call, size, progress)
                ratios[f"{name}_{hidden}"] = theirs / ours
                values[f"{name}_{hidden}_ms"] = 1e3 * ours
                values[f"{name}_{hidden}_ms_toploc"] = 1e3 * theirs
    return BenchResult("toploc", ratios, values, dict.fromkeys(ratios, (">=", BAR)))


def states(hidden: int) -> tuple[Bits, Bits]:
    """States and the same with a little noise, as bits of bf16: [tokens, hidden]."""
    generator = torch.Generator().manual_seed(hidden)
    clean = torch.randn(TOKENS, hidden, generator=generator)
    noisy = clean * (1 + NOISE * torch.randn(TOKENS, hidden, generator=generator))
    return untied(clean), untied(noisy)


def untied(values: torch.Tensor) -> Bits:
    """The bits of the states, with no two equal magnitudes across rank k of a chunk.

    There the published package's choice is not defined, and bytes could not be compared.
    """
    bits_TH = values.bfloat16().view(torch.int16).numpy().view(np.uint16)
    for start in range(0, len(bits_TH), CHUNK):
        flat = bits_TH[start : start + CHUNK].reshape(-1)
        magnitudes = flat & 0x7FFF
        last = np.partition(magnitudes, -K)[-K]
        tied = np.flatnonzero(magnitudes == last)
        flat[tied[K - int((magnitudes > last).sum()) :]] -= 1
    return bits_TH


def _prepare(peer: Peer, scratch: Path, cpu: int | None, claimed: Bits, own: Bits) -> str:
    """Gives the peer its work and checks that both sides find the same; returns the peer's version."""
    np.save(scratch / "claimed.npy", claimed)
    np.save(scratch / "own.npy", own)
    question = {"cpu": cpu, "chunk": CHUNK, "k": K, **{n: str(scratch / f"{n}.npy") for n in ("claimed", "own")}}
    answer = peer.ask(question, awaiting="its proofs", deadline_s=PREPARE_S)
    proofs = toploc.build(claimed, CHUNK, K)
    if proofs.hex() != answer["proofs"]:
        raise BenchError(f"hidden size {claimed.shape[1]}: the two sides build different proofs; nothing was measured")
    results = toploc.verify(own, proofs, CHUNK, K)
    if [[r.exponent_mismatches, r.mantissa_mean, r.mantissa_median] for r in results] != answer["results"]:
        raise BenchError(f"hidden size {claimed.shape[1]}: the two sides verify differently; nothing was measured")
    return str(answer["version"])


def _ours(claimed: Bits, own: Bits) -> dict[str, Callable[[], Any]]:
    claimed_TH, own_TH = (torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16) for bits in (claimed, own))
    proofs = toploc.build(claimed_TH, CHUNK, K)
    return {
        "build": lambda: toploc.build(claimed_TH, CHUNK, K),
        "verify": lambda: toploc.verify(own_TH, proofs, CHUNK, K),
    }


def _in_turns(peer: Peer, name: str, call: Callable[[], Any], size: Size, progress: Progress) -> tuple[float, float]:
    """The best time of each side, in seconds."""
    theirs, ours = [], []
    for i in range(size.rounds):
        progress.detail(f"{name}, round {i + 1} of {size.rounds}")
        answer = peer.ask({"time": name, "repeats": size.peer}, awaiting=f"the time of {name}", deadline_s=ROUND_S)
        theirs.append(float(answer["seconds"]))
        ours.append(best(call, size.ours))
    return min(theirs), min(ours)


def toploc_peer(cache: Path) -> Peer:
    """The published package, to be entered and then asked as `peers/toploc.py` says."""
    python = peer_python("toploc", REQUIREMENTS, cache=cache)
    built = python.parent.parent / "built.json"
    if not (built.exists() and built.read_text() == json.dumps(BUILT)):
        _build(python)
        built.write_text(json.dumps(BUILT))
    return Peer("toploc", python, SCRIPT, environment=SLEEP_WHEN_IDLE)


def _build(python: Path) -> None:
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise BenchError(
            f"peer toploc: {BUILT} is built from its sources and {compiler} is not there; install a C++ compiler, or "
            "name one with CXX. Only this benchmark needs it: shoal.toploc does not"
        )
    pip = [str(python), "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--no-binary", "toploc", BUILT]
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"  # ninja is there
    try:
        done = subprocess.run(
            command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=BUILD_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"peer toploc: building {BUILT} took more than {BUILD_S:.0f} s") from None
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BenchError(f"peer toploc: `{' '.join(command)}` ended with {done.returncode}. Its last lines:\n{tail}")
