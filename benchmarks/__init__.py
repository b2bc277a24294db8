"""Side-by-side measurements against what you would otherwise use: `python -m benchmarks` in a checkout lists them."""

from pathlib import Path

# The checkout: configs are read from here, and child processes are started here so that they find this package.
ROOT = Path(__file__).parents[1]
