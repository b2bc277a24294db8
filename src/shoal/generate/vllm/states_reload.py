"""Another version for vLLM that computes states alone, without a restart: loaded in place, then compared.

It runs in the process of `validate/vllm_script.py`, if the interpreter there has Shoal as well.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported"

from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, first_line
from shoal.generate.vllm.fingerprint import first_difference
from shoal.models.weights import read_weights


def load_states_version(worker: Any, folder: str, dtype: str) -> str:
    """Loads a version into vLLM's worker of this process; an empty text if it computes with what the files say."""
    try:
        weights = read_weights(Path(folder), dtype)
        worker.reload_weights(weights_iterator=iter(weights.items()))
        different = first_difference(worker.model_runner.get_model(), weights, head=False)
    except ShoalError as error:
        return str(error)
    except Exception as error:  # whatever vLLM makes of weights that do not fit it
        return f"vLLM cannot load it ({type(error).__name__}: {first_line(error)})"
    return f"vLLM's fingerprint of it differs from its files at {different}" if different is not None else ""
