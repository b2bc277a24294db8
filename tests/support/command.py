"""The `shoal` command in this process, from its entry point to its exit code: a tenth of the time of a new process."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from shoal.cli import main


def shoal(
    home: Path, *arguments: str, said: str = "", columns: int = 200, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What `shoal ARGUMENTS` prints and its exit code; `home` has its key, `said` is its standard input."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in {"COLUMNS": str(columns), "NO_COLOR": "1", "XDG_CONFIG_HOME": str(home)}.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        patch.setattr(sys, "argv", ["shoal", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code or 0, out.getvalue(), err.getvalue())
