"""A policy: any transformers causal LM directory with its tokenizer, and what the rest of Shoal needs of it.

Hidden states and logits are two calls here: proofs are made of the first, and the loss needs the second for a few
positions only. `load` checks on real numbers that both halves, and packing, agree with the model's own forward pass, so
an architecture that does something unusual is refused by name rather than trained wrongly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from shoal.errors import ModelError
from shoal.files import parse_json
from shoal.models.attention import NAME as ATTENTION
from shoal.models.attention import Layout, Packed, SharedPrompt
from shoal.models.untrusted import check_foreign_model

WEIGHTS = "model.safetensors"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Packed and plain logits of the same tokens, relative to their spread (`disagreement`): float32 kernels differ by about
# 1e-6 at most, bfloat16 ones by some hundredths on average; an architecture that ignores our attention differs by 1.
AGREEMENT = {torch.float32: 1e-3, torch.bfloat16: 0.1}


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal LM, its tokenizer and the token ids that end an answer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]

    @property
    def vocab(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def hidden_size(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[1])

    @property
    def max_positions(self) -> int:
        """The longest sequence whose every token is computed the same, whatever runs beside it.

        Beyond a sliding window we would attend to too much; beyond the length of its first training a model with
        "longrope" rotates all tokens of a batch otherwise than those of its short sequences.
        """
        config = self.model.config
        limits: list[int | None] = [getattr(config, "max_position_embeddings", None)]
        if "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"]):
            limits.append(getattr(config, "sliding_window", None))
        rope = getattr(config, "rope_parameters", None) or {}
        ropes = [kind for kind in (rope, *rope.values()) if isinstance(kind, dict)]
        limits += [
            kind.get("original_max_position_embeddings") for kind in ropes if kind.get("rope_type") == "longrope"
        ]
        return min((int(limit) for limit in limits if limit), default=2**31)

    def hidden(self, ids_BT: Tensor, positions_BT: Tensor, layout: Layout) -> Tensor:
        """Final hidden states, B x T x D: what the output head reads and what proofs are made of."""
        body = self.model.base_model
        out = body(input_ids=ids_BT, position_ids=positions_BT, use_cache=False, layout=layout)
        states: Tensor = out.last_hidden_state
        return states

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of final hidden states, with the scaling that some architectures apply after the output matrix."""
        config = self.model.config
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        if (scale := getattr(config, "logit_scale", None)) is not None:
            logits = logits * scale
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def encode(self, prompt: str) -> list[int]:
        """Token ids of one user turn: through the chat template where the tokenizer has one, as it is otherwise."""
        if self.tokenizer.chat_template:
            turn = [{"role": "user", "content": prompt}]
            ids = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        else:
            ids = self.tokenizer.encode(prompt)
        return list(map(int, ids))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer, without the special tokens that end it."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def weights(self) -> dict[str, Tensor]:
        """Parameters by name, each storage once: tied embeddings appear under their first name."""
        seen: set[int] = set()
        unique = {}
        for name, tensor in self.model.state_dict(keep_vars=False).items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                unique[name] = tensor
        return unique

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor], origin: str) -> None:
        """Copies weights in place; names and shapes must match exactly, and nothing changes unless all of them do."""
        mine = self.weights()
        if missing := sorted(mine.keys() - weights.keys()):
            raise ModelError(f"{origin}: lacks {missing[0]} (and {len(missing) - 1} more); it is of another model")
        if extra := sorted(weights.keys() - mine.keys()):
            raise ModelError(f"{origin}: has {extra[0]} (and {len(extra) - 1} more), which this model does not know")
        for name, tensor in mine.items():
            if weights[name].shape != tensor.shape:
                raise ModelError(
                    f"{origin}: {name} has shape {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}"
                )
        for name, tensor in mine.items():
            tensor.copy_(weights[name])


def read_weights(folder: Path, dtype: str) -> dict[str, Tensor]:
    """The weights of a published version, or a ModelError that names the file.

    Version 0 is a whole model directory as somebody saved it, perhaps in several files or under older names: it is
    loaded as a model. Later versions are one file with the names of `Policy.weights`.
    """
    if (folder / "config.json").is_file():
        return load(folder, dtype).weights()
    path = folder / WEIGHTS
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error})") from error


def load(directory: Path, dtype: str = "float32") -> Policy:
    """Loads a transformers causal LM directory for generation and training, and checks that it is one we handle."""
    _check_files(directory)
    disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many types for a missing or broken tokenizer
        raise ModelError(
            f"model {directory}: no usable tokenizer ({_first_line(error)}); "
            "save one beside the model with tokenizer.save_pretrained"
        ) from error
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,  # left open, transformers asks the person at the terminal
            dtype=DTYPES[dtype],
            use_safetensors=True,
            output_loading_info=True,
        )
        model, found = loaded
    except Exception as error:  # the same for a missing or broken model
        raise ModelError(f"model {directory}: cannot be loaded ({_first_line(error)})") from error
    if missing := sorted(found["missing_keys"]):  # transformers would go on with random numbers in their place
        raise ModelError(f"model {directory}: lacks {missing[0]} (and {len(missing) - 1} more); save the whole model")
    if len(tokenizer) > (rows := model.get_input_embeddings().weight.shape[0]):
        raise ModelError(
            f"model {directory}: its tokenizer has {len(tokenizer)} tokens, the model {rows}; they are of two models"
        )
    model.eval()
    policy = Policy(model, tokenizer, _eos_ids(model, tokenizer, directory))
    _check(policy, directory)
    return policy


def load_as(directory: Path, held: str, computed: str) -> Policy:
    """A policy whose weights are rounded to the format `held`, and that computes in `computed`, which is at least as
    wide: float32 on bfloat16 weights is how judges compute, and an honest way for workers."""
    policy = load(directory, computed)
    if held != computed:
        policy.set_weights(load(directory, held).weights(), f"model {directory} in {held}")
    return policy


def _check_files(directory: Path) -> None:
    """What can be told of a model directory before anything of it is believed."""
    if not (directory / "config.json").is_file():
        raise ModelError(f"model {directory}: no config.json there; give a directory saved by save_pretrained")
    try:
        parse_json((directory / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"model {directory}: config.json is not JSON ({_first_line(error)}); save the model again with "
            "save_pretrained"
        ) from error
    if not any(directory.glob("*.safetensors")):
        pickles = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in directory.glob(kind))
        found = f"only {pickles[0]}, a pickle, which may run code when it is read" if pickles else "no weights"
        raise ModelError(
            f"model {directory}: no *.safetensors there, {found}; save the model again with save_pretrained and "
            "safe_serialization=True"
        )
    check_foreign_model(directory)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> frozenset[int]:
    ids: set[int] = set()
    for source in (tokenizer, model.generation_config, model.config):
        value = getattr(source, "eos_token_id", None)
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    if not ids:
        raise ModelError(f"model {directory}: neither tokenizer nor config names an eos token; answers could not end")
    return frozenset(int(i) for i in ids)


@torch.no_grad()
def _check(policy: Policy, directory: Path) -> None:
    """Compares our packed forward with the model's own, on a sample and on two answers that share a prompt.

    The shared prompt matters: some architectures ignore our attention, and transformers would still tell plain samples
    in one row apart by their positions. From here on the model uses our attention.
    """
    model = policy.model
    name = type(model).__name__
    generator = torch.Generator().manual_seed(0)
    alone, prompt, short, long = (torch.randint(0, policy.vocab, (n,), generator=generator) for n in (7, 5, 3, 6))
    samples = [alone, torch.cat([prompt, short]), torch.cat([prompt, long])]
    try:
        logits = [model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0] for ids in samples]
    except Exception as error:  # a config that does not fit together fails in any way
        raise ModelError(f"model {directory}: {name} cannot be run ({_first_line(error)})") from error
    plain = torch.cat([logits[0], logits[1], logits[2][len(prompt) :]])
    if not plain.isfinite().all():
        raise ModelError(f"model {directory}: {name} gives logits that are not finite; its weights are damaged")
    try:
        model.set_attn_implementation(ATTENTION)
        packed = Packed([len(alone), SharedPrompt(len(prompt), (len(short), len(long)))])
        row_1T = torch.cat([alone, prompt, short, long]).unsqueeze(0)
        ours = policy.head(policy.hidden(row_1T, packed.positions_1T, packed))[0]
    except Exception as error:  # whatever an architecture does with a call that it does not expect
        raise ModelError(
            f"model {directory}: {name} is not supported: it does not take our attention ({_first_line(error)})"
        ) from error
    if not (off := disagreement(plain, ours)) <= AGREEMENT[plain.dtype]:
        raise ModelError(
            f"model {directory}: {name} is not supported: its packed logits differ from its own forward pass by "
            f"{off:.3g} of their spread"
        )


def disagreement(expected: Tensor, found: Tensor) -> float:
    """How far logits are apart relative to their spread: at most in float32, and on average (root mean square) in
    bfloat16, in which the worst of a large vocabulary's logits is off by any amount."""
    apart, exact = expected.float() - found.float(), expected.dtype == torch.float32
    off = apart.abs().max() if exact else apart.pow(2).mean().sqrt()
    return float(off / (expected.float().std() + 1e-6))


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Named parameters that receive gradients, each once, in a stable order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]
