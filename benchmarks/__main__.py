"""Command line of the benchmarks: `python -m benchmarks` lists them, `python -m benchmarks NAME --json` runs one.

The result is all that goes to stdout; progress goes to stderr.
"""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import ROOT
from benchmarks.run import BENCHMARKS, run_benchmark
from shoal.errors import ShoalError
from shoal.process import EXIT_REFUSED, set_defaults


def main() -> None:
    set_defaults()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measures a hot path side by side with what you would otherwise use."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the benchmark to run; without it they are listed")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="a short run that shows it works; its figures mean little")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="keep finished parts there, and go on from those that are there already"
    )
    arguments = parser.parse_args()
    out = arguments.out and arguments.out.absolute()
    os.chdir(ROOT)  # paths in configs are relative to it
    try:
        if arguments.name is None:
            for name, benchmark in BENCHMARKS.items():
                sys.stdout.write(f"{name:<12} {benchmark.summary}\n")
        else:
            run_benchmark(arguments.name, arguments.json, arguments.quick, Console(), out)
    except ShoalError as error:
        Console(stderr=True).print(f"error: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(EXIT_REFUSED)


if __name__ == "__main__":
    main()
