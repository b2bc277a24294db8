"""numba functions, compiled at first use and cached on disk for the next process."""

# numba carries no types.
# mypy: ignore-errors

import numba


def kept(signature, fastmath=False):
    """Compiled at once, and kept: beside its file or, where that is read-only, in the user's cache directory.

    `fastmath` names what the compiler may do with floats that IEEE 754 forbids."""

    def decorate(function):
        settings = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
        try:
            return numba.njit(signature, cache=True, **settings)(function)
        except RuntimeError as error:  # there is no directory that can be written
            if "cannot cache" not in str(error):
                raise
            return numba.njit(signature, **settings)(function)

    return decorate
