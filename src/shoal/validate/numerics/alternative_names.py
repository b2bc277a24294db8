"""Names of the computations that files are compared with, for those who choose among them and compute nothing."""

INT8, FP8 = "int8 weights", "fp8 weights"
OLDER = "older version"


def shift_bet(name: str) -> str:
    """Name of the bet that a file follows another computation, which is not laid on every file."""
    return f"shift {name}"
