"""The table of what has been run on which hardware, from report files: `python -m shoal.doctor.report.table FILES`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.doctor.report.plan import STEPS
from shoal.doctor.report.report_file import Report, Status
from shoal.errors import ShoalError

MARK: dict[Status, str] = {"failed": "**no**", "passed": "yes", "skipped": "skipped"}
"""In the order in which one counts where reports of the same hardware differ: a failure is never hidden."""


def table(reports: Sequence[Report]) -> str:
    """Markdown, one row per hardware and software, and one column per step."""
    names = [step.name for step in STEPS]
    lines = [
        "| hardware | driver | torch | vLLM | Shoal | " + " | ".join(names) + " |",
        "|---" * (len(names) + 5) + "|",
    ]
    rows: dict[tuple[str, ...], dict[str, set[Status]]] = {}
    for report in reports:
        machine = report.machine
        devices = ", ".join(f"{machine.devices.count(name)} x {name}" for name in dict.fromkeys(machine.devices))
        row = rows.setdefault((devices, machine.driver, machine.torch, machine.vllm, report.shoal), {})
        for step in report.steps:
            row.setdefault(step.name, set()).add(step.status)
    for key, found in rows.items():
        cells = [next((mark for status, mark in MARK.items() if status in found.get(name, ())), "") for name in names]
        lines.append("| " + " | ".join(cell or "-" for cell in (*key, *cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    try:
        sys.stdout.write(table([Report.read(Path(name)) for name in sys.argv[1:]]) + "\n")
    except ShoalError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
