"""Nothing is compiled or imported before it is used; a cold cache serves several processes at once."""

import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import numpy as np
from shoal import toploc
states = np.arange(1, 41, dtype=np.float32).reshape(4, 10)
proofs = toploc.build(states)
assert toploc.accepts(toploc.verify(states, proofs))
print(proofs.hex())
"""


def python(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_importing_the_library_imports_neither_numba_nor_torch() -> None:
    code = "import sys, shoal.toploc; print([m for m in ('numba', 'torch') if m in sys.modules])"
    assert output(python(code)) == "[]\n"


def test_two_processes_that_compile_into_one_cold_cache_both_work_and_leave_it_warm(tmp_path: Path) -> None:
    together = [python(CHILD, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    first, second = (output(process) for process in together)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}
    assert len(files) == 6  # an index and a code file for build, build_from_top and verify
    third = output(python(CHILD, NUMBA_CACHE_DIR=str(tmp_path)))
    assert first == second == third
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")} == files


def test_without_a_directory_that_can_be_written_it_compiles_and_works() -> None:
    nowhere = "from numba.core.caching import CacheImpl\nCacheImpl._locator_classes = []\n"
    assert output(python(nowhere + CHILD)) == output(python(CHILD))
