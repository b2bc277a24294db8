"""Triton kernel for GPUs: scale, the lease's noise, argmax, log-sum-exp and the chosen token's log-prob at once.

The noise is that of `generate/sampling.py` to the bit: Philox 4x64-10, key (seed, sample), one block of four 64-bit
words for eight tokens. Scores are float64, as there: the rarest draws, which win, are the ones that float32 rounds
worst. Each program handles one row's next `TOKENS` tokens; a row's programs are put together by PyTorch.

Runs on a CPU with TRITON_INTERPRET=1, which is how it is tested.
"""

# Triton carries no types.
# mypy: ignore-errors

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.random import philox_impl

from shoal.devices import sums_dtype, to_device
from shoal.generate.sampling import words

# Blocks of eight tokens per program.
BLOCKS = 256
TOKENS = 8 * BLOCKS
TOKENS_PER_BLOCK = 8


@triton.jit
def _words(seed, sample, block):
    """The four words of a block: numpy steps its counter before it draws."""
    counter = (block + 1).to(tl.uint64)
    zero = tl.zeros_like(counter)
    return philox_impl(counter, zero, zero, zero, zero + seed, zero + sample, 10)


@triton.jit
def _half(word, high: tl.constexpr):
    """The 32 bits of an even token, or of the odd one after it."""
    if high:
        return (word >> 32).to(tl.uint32)
    return (word & 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def _bits_kernel(seeds, samples, positions, out, vocab, per_position, blocks: tl.constexpr):
    row = tl.program_id(0)
    seed = tl.load(seeds + row).to(tl.uint64, bitcast=True)
    sample = tl.load(samples + row).to(tl.uint64, bitcast=True)
    position = tl.load(positions + row)
    lane = tl.program_id(1) * blocks + tl.arange(0, blocks)
    words = _words(seed, sample, position * per_position + lane)
    for j in tl.static_range(4):
        for high in tl.static_range(2):
            token = 8 * lane + 2 * j + high
            tl.store(out + row * vocab + token, _half(words[j], high).to(tl.int32, bitcast=True), token < vocab)


@triton.jit
def _draw_kernel(
    logits, row_stride, seeds, samples, positions, temperatures,
    scores_out, tokens_out, chosen_out, peaks_out, sums_out,
    vocab, per_position, parts, blocks: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.program_id(1)
    seed = tl.load(seeds + row).to(tl.uint64, bitcast=True)
    sample = tl.load(samples + row).to(tl.uint64, bitcast=True)
    position = tl.load(positions + row)
    temperature = tl.load(temperatures + row)
    lane = part * blocks + tl.arange(0, blocks)
    words = _words(seed, sample, position * per_position + lane)
    peak = tl.full((blocks,), float("-inf"), tl.float32)
    best = tl.full((blocks,), float("-inf"), tl.float64)
    token_of_best = tl.zeros((blocks,), tl.int32)
    chosen = tl.full((blocks,), float("-inf"), tl.float32)
    for j in tl.static_range(4):
        for high in tl.static_range(2):
            token = 8 * lane + 2 * j + high
            logit = tl.load(logits + row.to(tl.int64) * row_stride + token, token < vocab, other=float("-inf"))
            scaled = tl.div_rn(logit.to(tl.float32), temperature)
            uniform = (_half(words[j], high).to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
            score = scaled.to(tl.float64) - tl.log(-tl.log(uniform))
            higher = score > best
            best = tl.where(higher, score, best)
            token_of_best = tl.where(higher, token, token_of_best)
            chosen = tl.where(higher, scaled, chosen)
            peak = tl.maximum(peak, scaled)
    top = tl.max(best, 0)
    winner = tl.min(tl.where(best == top, token_of_best, 0x7FFFFFFF), 0)
    highest = tl.max(peak, 0)
    base = tl.where(highest > float("-inf"), highest, 0.0)  # all tokens of a part may be forbidden
    total = tl.zeros((blocks,), tl.float32)
    for j in tl.static_range(8):
        token = 8 * lane + j
        logit = tl.load(logits + row.to(tl.int64) * row_stride + token, token < vocab, other=float("-inf"))
        scaled = tl.div_rn(logit.to(tl.float32), temperature)
        total += tl.exp(scaled - base)
    at = row * parts + part
    tl.store(scores_out + at, top)
    tl.store(tokens_out + at, winner)
    tl.store(chosen_out + at, tl.max(tl.where(token_of_best == winner, chosen, float("-inf")), 0))
    tl.store(peaks_out + at, highest)
    tl.store(sums_out + at, tl.sum(total, 0))


def noise_bits(
    seeds: Sequence[int], samples: Sequence[int], positions: Sequence[int], vocab: int, device: torch.device
) -> Tensor:
    """The 32 random bits of every token, as int32: what `NoiseStream` draws, computed on a device."""
    keys = _on(device, seeds, samples, positions)
    out_BV = torch.empty(len(seeds), vocab, dtype=torch.int32, device=device)
    grid = (len(seeds), triton.cdiv(vocab, TOKENS))
    _bits_kernel[grid](*keys, out_BV, vocab, words(vocab) // 4, blocks=BLOCKS)
    return out_BV


def draw_on_device(
    logits_BV: Tensor,
    seeds: Sequence[int],
    samples: Sequence[int],
    positions: Sequence[int],
    temperatures: Sequence[float],
) -> tuple[Tensor, Tensor]:
    """Tokens argmax(logits / T + g), the lowest of equals, and their log-probs under softmax(logits / T)."""
    device, (rows, vocab) = logits_BV.device, logits_BV.shape
    logits_BV = logits_BV.contiguous()
    parts = triton.cdiv(vocab, TOKENS)
    scores_BP = torch.empty(rows, parts, dtype=sums_dtype(device), device=device)
    tokens_BP = torch.empty(rows, parts, dtype=torch.int32, device=device)
    chosen_BP, peaks_BP, sums_BP = (torch.empty(rows, parts, device=device) for _ in range(3))
    _draw_kernel[(rows, parts)](
        logits_BV, logits_BV.stride(0), *_on(device, seeds, samples, positions),
        to_device(temperatures, torch.float32, device),
        scores_BP, tokens_BP, chosen_BP, peaks_BP, sums_BP,
        vocab, words(vocab) // 4, parts, blocks=BLOCKS,
    )  # fmt: skip
    best_B1 = scores_BP.max(dim=1, keepdim=True).values
    tokens_B = torch.where(scores_BP == best_B1, tokens_BP, vocab).min(dim=1).values.long()
    chosen_B = chosen_BP.gather(1, (tokens_B // TOKENS).unsqueeze(1)).squeeze(1)
    return tokens_B, chosen_B - torch.logsumexp(peaks_BP + sums_BP.log(), dim=1)


def _on(device: torch.device, *numbers: Sequence[int]) -> list[Tensor]:
    """Unsigned 64-bit numbers on a device, as int64 of the same bits. Each begins where memory does: Triton compiles a
    kernel again for addresses of another alignment, which rows of one tensor would have by the number of answers."""
    signed = [[n - (1 << 64) if n >> 63 else n for n in some] for some in numbers]
    return [to_device(some, torch.int64, device) for some in signed]
