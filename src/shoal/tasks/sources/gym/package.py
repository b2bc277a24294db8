"""The package reasoning-gym, imported without what Python says of the syntax of packages that it imports."""

import warnings
from typing import Any


def import_gym() -> Any:
    """Where bytecode is not there yet, cellpylib is compiled with warnings, of which a user can do nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        import reasoning_gym

    return reasoning_gym
