"""The profile of this machine, as far as it can be told from here."""

import torch

from shoal import __version__
from shoal.devices import CPU, DTYPES, hardware, has_flash_attention
from shoal.protocol.profile import Profile, slug

USUAL_HEAD = 128


def this_profile(dtype: str, device: torch.device = CPU) -> Profile:
    """What a worker of this machine declares that computes with our engine in this number format on this device."""
    release = ".".join(__version__.split(".")[:2])
    # Elsewhere our attention is PyTorch's scaled_dot_product_attention, or the kernel that it would choose.
    attention = "varlen" if has_flash_attention(device, DTYPES[dtype], USUAL_HEAD) else "sdpa"
    return Profile.model_validate(
        {"hardware": slug(hardware(device)), "engine": f"shoal-{release}", "attention": attention, "dtype": dtype}
    )
