"""The release of vLLM whose inner interfaces we know: logits processors, compute_logits, reload_weights."""

RELEASE = "0.32"


def is_known(version: str) -> bool:
    """Whether workers generate with this version."""
    return version.startswith(f"{RELEASE}.")
