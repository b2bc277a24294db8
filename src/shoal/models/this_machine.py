"""The profile of this machine, as far as it can be told from here."""

import platform

import torch

from shoal import __version__
from shoal.protocol.profile import Profile, slug

# Our attention function hands its work to PyTorch's scaled_dot_product_attention, which chooses the kernel.
ATTENTION = "sdpa"


def this_profile(dtype: str) -> Profile:
    """What a worker of this machine declares that computes with our engine in this number format."""
    if torch.cuda.is_available():
        hardware = torch.cuda.get_device_name(0)
    else:
        # The instruction set decides in which order a CPU adds up; the model of the CPU does not.
        hardware = f"{platform.machine()}-cpu-{torch.backends.cpu.get_cpu_capability()}"
    release = ".".join(__version__.split(".")[:2])
    return Profile.model_validate(
        {"hardware": slug(hardware), "engine": f"shoal-{release}", "attention": ATTENTION, "dtype": dtype}
    )
