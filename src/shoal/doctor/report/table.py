"""The table of what has been run on which hardware, from report files: `python -m shoal.doctor.report.table FILES`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.doctor.report.plan import STEPS
from shoal.doctor.report.report_file import Report
from shoal.errors import ShoalError

MARK = {"passed": "yes", "failed": "**no**", "skipped": "skipped"}


def table(reports: Sequence[Report]) -> str:
    """Markdown, one row per report and one column per step."""
    names = [step.name for step in STEPS]
    lines = [
        "| hardware | driver | torch | vLLM | Shoal | " + " | ".join(names) + " |",
        "|---" * (len(names) + 5) + "|",
    ]
    for report in reports:
        machine, found = report.machine, {step.name: step for step in report.steps}
        cells = [MARK[found[name].status] if name in found else "" for name in names]
        devices = ", ".join(f"{machine.devices.count(name)} x {name}" for name in dict.fromkeys(machine.devices))
        said = [devices, machine.driver, machine.torch, machine.vllm, report.shoal, *cells]
        lines.append("| " + " | ".join(cell or "-" for cell in said) + " |")
    return "\n".join(lines)


def main() -> None:
    try:
        sys.stdout.write(table([Report.read(Path(name)) for name in sys.argv[1:]]) + "\n")
    except ShoalError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
