"""The process of one step: reads its task from standard input, runs the step, writes the result to a file.

A process of its own, because a wrong driver or kernel ends the process that meets it, and because a step's device
memory is then free for the next one.
"""

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from shoal.config_io import check_config
from shoal.devices import set_up
from shoal.doctor.steps.context import Context, StepFailed, StepSkipped
from shoal.errors import ShoalError

RESULT = "result.json"


def run_step(task: dict[str, Any]) -> dict[str, Any]:
    """Status, reason and values of the step that a task names."""
    try:
        config = check_config(task["config"], "report")
        device = set_up(task["device"], config.train.threads)
        context = Context(config, Path(task["model"]), device, Path(task["scratch"]))
        values = importlib.import_module(task["module"]).run(context)
    except StepSkipped as skipped:
        return {"status": "skipped", "reason": str(skipped), "values": {}}
    except (StepFailed, ShoalError) as failed:
        return {"status": "failed", "reason": str(failed), "values": {}}
    except Exception as error:
        import traceback

        traceback.print_exc()
        said = (str(error).splitlines() or [""])[0]
        return {"status": "failed", "reason": f"{type(error).__name__}: {said}"[:500], "values": {}}
    return {"status": "passed", "reason": "", "values": values}


def end_with_parent() -> None:
    """Kills this process and all that it started once its requests end: nobody waits for it any more."""

    def watch() -> None:
        os.read(0, 1)  # not through sys.stdin, whose lock a thread must not hold when we exit
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def main() -> None:
    task = json.loads(sys.stdin.buffer.readline())
    end_with_parent()
    (Path(task["scratch"]) / RESULT).write_text(json.dumps(run_step(task)))


if __name__ == "__main__":
    main()
