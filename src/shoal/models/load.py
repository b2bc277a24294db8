"""A policy: any transformers causal LM directory with its tokenizer, and what the rest of Shoal needs of it.

Hidden states and logits are two calls here: proofs are made of the first, and the loss needs the second for a few
positions only. `load` checks on real numbers that both halves, and packing, agree with the model's own forward pass, so
an architecture that does something unusual is refused by name rather than trained wrongly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from shoal.devices import CPU, DTYPES, META, to_numpy
from shoal.errors import ModelError
from shoal.files import parse_json
from shoal.models.adapter_files import ADAPTER_PARAMETERS
from shoal.models.attention import NAME as ATTENTION
from shoal.models.attention import Layout, Packed, SharedPrompt
from shoal.models.merge import shapes_of
from shoal.models.templates import template_of
from shoal.models.untrusted import check_foreign_model
from shoal.tasks.source import Task

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

    @property
    def device(self) -> torch.device:
        """Where it computes: what comes in is moved there, and what it gives is there."""
        return self.model.device

    def hidden(self, ids_BT: Tensor, positions_BT: Tensor, layout: Layout) -> Tensor:
        """Final hidden states, B x T x D: what the output head reads and what proofs are made of."""
        body = self.model.base_model
        ids_BT, positions_BT = ids_BT.to(self.device), positions_BT.to(self.device)
        out = body(input_ids=ids_BT, position_ids=positions_BT, use_cache=False, layout=layout)
        states: Tensor = out.last_hidden_state
        return states

    def head(self, hidden: Tensor, tokens: slice | None = None) -> Tensor:
        """Logits of final hidden states, with the scaling that some architectures apply after the output matrix; of
        some tokens only where they are given."""
        config, matrix, hidden = self.model.config, self.model.get_output_embeddings(), hidden.to(self.device)
        if tokens is None:
            logits: Tensor = matrix(hidden)
        else:
            logits = F.linear(hidden, matrix.weight[tokens], None if matrix.bias is None else matrix.bias[tokens])
        if (scale := getattr(config, "logit_scale", None)) is not None:
            logits = logits * scale
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def encode(self, prompt: str, system: str = "", prefill: str = "") -> list[int]:
        """Token ids of one user turn, with a system turn before it and the beginning of the answer behind it, where
        they are given: through the chat template where the tokenizer has one, as plain text otherwise.

        A template that begins the answer with the same text by itself, as those of some reasoning models do, is left
        alone: the text is there once.
        """
        tokenizer = self.tokenizer
        if not tokenizer.chat_template:
            text = f"{system}\n{prompt}" if system else prompt
            return list(map(int, tokenizer.encode(text + prefill)))
        turns = [{"role": "system", "content": system}] if system else []
        turns.append({"role": "user", "content": prompt})
        asking: dict[str, Any] = {"add_generation_prompt": True, "chat_template": template_of(tokenizer)}
        try:
            ids = tokenizer.apply_chat_template(turns, **asking, return_dict=False)
            begun = tokenizer.apply_chat_template(turns, **asking, tokenize=False) if prefill else ""
        except Exception as error:  # a template is a program, and raises what it likes at a system turn
            if not system:
                raise
            raise ModelError(
                f"system turn {system[:60]!r}: the model's chat template refuses it ({error!s:.200}); leave it out"
            ) from error
        if prefill and not str(begun).rstrip().endswith(prefill.strip()):
            ids = [*ids, *tokenizer.encode(prefill, add_special_tokens=False)]
        return list(map(int, ids))

    def encode_task(self, task: Task) -> list[int]:
        """Token ids of what a task asks, turns and all."""
        return self.encode(task.prompt, task.system, task.prefill)

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> str:
        """The text of an answer, without the special tokens that end it."""
        return str(self.tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True))

    def weights(self) -> dict[str, Tensor]:
        """Parameters by name, each once: tied embeddings appear under their first name.

        Adapters are not among them: these are the weights that they are merged into.
        """
        seen: set[int] = set()
        unique = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen and not name.endswith(ADAPTER_PARAMETERS):
                seen.add(id(tensor))
                unique[name] = tensor.detach()
        return unique

    def trained_weights(self) -> dict[str, Tensor]:
        """What training changes, and checkpoints hold: the adapters of a model that has them, or all weights."""
        adapters = {name: p.detach() for name, p in trainable(self.model) if name.endswith(ADAPTER_PARAMETERS)}
        return adapters or self.weights()

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor], origin: str) -> None:
        """Copies weights in place; names and shapes must match exactly, and nothing changes unless all of them do."""
        mine = self.weights()
        check_names({name: tensor.shape for name, tensor in mine.items()}, shapes_of(weights), origin)
        for name, tensor in mine.items():
            tensor.copy_(weights[name])


def check_names(mine: Mapping[str, torch.Size], found: Mapping[str, torch.Size], origin: str) -> None:
    """Refuses tensors whose names or shapes are not a model's own."""
    if missing := sorted(mine.keys() - found.keys()):
        raise ModelError(f"{origin}: lacks {missing[0]} (and {len(missing) - 1} more); it is of another model")
    if extra := sorted(found.keys() - mine.keys()):
        raise ModelError(f"{origin}: has {extra[0]} (and {len(extra) - 1} more), which this model does not know")
    for name, shape in mine.items():
        if found[name] != shape:
            raise ModelError(f"{origin}: {name} has shape {tuple(found[name])}, expected {tuple(shape)}")


def load(directory: Path, dtype: str = "float32", device: torch.device = CPU) -> Policy:
    """Loads a transformers causal LM directory for generation and training, and checks on its device that it is one we
    handle."""
    _check_files(directory)
    disable_progress_bar()
    tokenizer = _tokenizer(directory)
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
    model.to(device).eval()
    policy = Policy(model, tokenizer, _eos_ids(model, tokenizer, directory))
    _check(policy, directory)
    return policy


def outline(directory: Path, dtype: torch.dtype = torch.float32) -> Policy:
    """The policy that `load` gives, without its numbers: every tensor is on the meta device and takes no memory."""
    tokenizer = _tokenizer(directory)
    config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    model = model_on_meta(config, dtype)
    return Policy(model, tokenizer, _eos_ids(model, tokenizer, directory))


def model_on_meta(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model of this architecture without numbers, with our attention."""
    with META:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    model.eval()
    return model


def load_as(directory: Path, held: str, computed: str, device: torch.device = CPU) -> Policy:
    """A policy whose weights are rounded to the format `held`, and that computes in `computed`, which is at least as
    wide: float32 on bfloat16 weights is how judges compute, and an honest way for workers."""
    policy = load(directory, computed, device)
    if held != computed:
        policy.set_weights(load(directory, held).weights(), f"model {directory} in {held}")
    return policy


def _tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises many types for a missing or broken tokenizer
        raise ModelError(
            f"model {directory}: no usable tokenizer ({_first_line(error)}); "
            "save one beside the model with tokenizer.save_pretrained"
        ) from error
    return found


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
    draws = (torch.randint(0, policy.vocab, (n,), generator=generator) for n in (7, 5, 3, 6))
    alone, prompt, short, long = (ids.to(policy.device) for ids in draws)
    samples = [alone, torch.cat([prompt, short]), torch.cat([prompt, long])]
    try:
        logits = [model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0] for ids in samples]
    except Exception as error:  # a config that does not fit together fails in any way
        raise ModelError(f"model {directory}: {name} cannot be run ({_first_line(error)})") from error
    plain = torch.cat([logits[0], logits[1], logits[2][len(prompt) :]])
    if not to_numpy(plain.isfinite()).all():
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
    return float(to_numpy(off / (expected.float().std() + 1e-6)))


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Named parameters that receive gradients, each once, in a stable order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]
