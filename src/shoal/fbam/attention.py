"""Pre-norm attention block without biases, for the cells of a frame and for the frames of a sequence."""

from torch import Tensor, cat, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

KeysValues = tuple[Tensor, Tensor]  # each batch x heads x positions x width per head


class Attention(nn.Module):
    """Multi-head attention whose earlier keys and values may come from outside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(
        self, x_BND: Tensor, past: KeysValues | None = None, bias_HNM: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """Attends over `past` and `x`; `bias` is added to the scores. Returns all keys and values beside the result."""
        batch, positions, width = x_BND.shape
        qkv = self.to_qkv(x_BND).view(batch, positions, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = cat([past[0], key], dim=2), cat([past[1], value], dim=2)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=bias_HNM)
        out: Tensor = self.to_out(mixed.transpose(1, 2).reshape(batch, positions, width))
        return out, (key, value)


class Block(nn.Module):
    """Attention, then a feed-forward layer four times as wide, each added to what it read through an RMSNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width)

    def forward(
        self, x_BND: Tensor, past: KeysValues | None = None, bias_HNM: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        mixed, keys_values = self.attention(self.attention_norm(x_BND), past, bias_HNM)
        return self.feed_forward(x_BND + mixed), keys_values


class FeedForward(nn.Module):
    """x + W2 gelu(W1 norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BND: Tensor) -> Tensor:
        out: Tensor = x_BND + self.narrow(gelu(self.widen(self.norm(x_BND))))
        return out
