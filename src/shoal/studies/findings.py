"""Fills `docs/findings.md` from results: between two markers per study stands what its JSON says, and nothing else.

    <!-- study:async -->
    <!-- end -->

A study without a result says so. A smoke test is not a result.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError, StorageError
from shoal.files import write_whole
from shoal.studies.catalogue import STUDIES, find_study
from shoal.studies.store import read_table
from shoal.studies.study import Study

BLOCK = re.compile(r"(<!-- study:([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOT_RUN = "Not run yet."


def fill_findings(page: Path, results: list[Path]) -> list[str]:
    """Takes the results of these directories into the page's folder, writes the page, and names the studies it has."""
    folder = page.with_suffix("")
    for directory in results:
        _take(directory, folder)
    found = {name: _read(file) for name in STUDIES if (file := folder / f"{name}.json").exists()}
    text = page.read_text()
    missing = sorted(STUDIES.keys() - {match[2] for match in BLOCK.finditer(text)})
    if missing:
        raise ConfigError(f"{page}: study {missing[0]} has no place; add <!-- study:{missing[0]} --> and <!-- end -->")
    write_whole(page, filled(text, found).encode())
    return list(found)


def filled(text: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with each block made again from the study's result."""

    def block(match: re.Match[str]) -> str:
        study = find_study(match[2])
        result = found.get(study.name)
        body = described(study, result) + (NOT_RUN if result is None else table(result))
        return f"{match[1]}{body}\n{match[3]}"

    return BLOCK.sub(block, text)


def described(study: Study, result: Mapping[str, Any] | None) -> str:
    """Its claim, its command and its size: those of the result, or of the code where there is none."""
    command, loop = f"shoal study {study.name}", study.loop
    seeds, first, steps = study.full.seeds, study.full.first_seed, study.full.steps
    if result is not None:
        command, loop, seeds, steps = (result[key] for key in ("command", "loop", "seeds", "steps"))
        first = result["first_seed"]
    settings = len(study.settings())
    which = f" ({first} .. {first + seeds - 1})" if first > 1 else ""
    return (
        f"Paper: {study.paper}.\n\n"
        f"`{command}`: {settings} settings x {seeds} seeds{which} = {settings * seeds} runs of {steps} steps; "
        f"{loop}.\n\n"
    )


def table(result: Mapping[str, Any]) -> str:
    """Verdict, claims and figures of a result."""
    hours = result["seconds"] / 3600
    whose = "The paper's" if any(claim["of"] == "paper" for claim in result["claims"]) else "Shoal's"
    rows = [
        f"| {claim['claim']} | {claim['outcome']} | {_interval(claim)} | {100 * claim['confidence']:.3g} % | "
        f"{claim['seeds']} | {_range(claim)} | {claim['measure']} |"
        for claim in result["claims"]
    ]
    figures = [f"| {name} | {_figure(value)} |" for name, value in result["figures"].items()]
    return "\n".join(
        [
            f"**{whose} claim: {result['verdict']}** ({result['seeds']} seeds, runs of {hours:.2f} h together).",
            "",
            "| claim | outcome | mean [interval] | confidence | n | range | of what |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            "| figure | value |",
            "|---|---|",
            *figures,
            "",
            f"![{result['study']}](findings/{result['study']}.png)",
        ]
    )


def _take(directory: Path, folder: Path) -> None:
    result = _read(directory / "result.json")
    name = find_study(str(result.get("study"))).name
    if result.get("quick"):
        raise ConfigError(f"{directory}: a smoke test of study {name}, whose figures mean nothing; run it in full")
    folder.mkdir(exist_ok=True)
    write_whole(folder / f"{name}.json", json.dumps(result, indent=1).encode())
    shutil.copyfile(directory / "figure.png", folder / f"{name}.png")


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_table(file)
    except StorageError as error:
        raise ConfigError(f"{file}: not a study's result; give the directory of a finished study") from error


def _interval(claim: Mapping[str, Any]) -> str:
    low, high = (("-inf" if claim[key] is None else f"{claim[key]:+.3f}") for key in ("low", "high"))
    return f"{claim['mean']:+.3f} [{low}, {high.replace('-inf', 'inf')}]"


def _range(claim: Mapping[str, Any]) -> str:
    low, high = claim["lower"], claim["upper"]
    if high is None:
        return f"at least {low:g}"
    return f"at most {high:g}" if low is None else f"{low:g} .. {high:g}"


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}"
