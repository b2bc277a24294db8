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

from shoal.errors import ConfigError
from shoal.files import parse_json, read_regular, write_whole
from shoal.studies.catalogue import STUDIES, find_study
from shoal.studies.study import Size, Study

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
        body = described(study) + (NOT_RUN if result is None else table(result))
        return f"{match[1]}{body}\n{match[3]}"

    return BLOCK.sub(block, text)


def described(study: Study) -> str:
    """What follows from the study's code: its command, size and claim."""
    size: Size = study.full
    runs = len(study.settings()) * size.seeds
    return (
        f"Paper: {study.paper}.\n\n"
        f"`shoal study {study.name}`: {len(study.settings())} settings x {size.seeds} seeds = {runs} runs of "
        f"{size.steps} steps; {study.loop}.\n\n"
    )


def table(result: Mapping[str, Any]) -> str:
    """Verdict, claims and figures of a result."""
    hours = result["seconds"] / 3600
    rows = [
        f"| {claim['claim']} | {claim['outcome']} | {_interval(claim)} | {claim['seeds']} | {_range(claim)} |"
        for claim in result["claims"]
    ]
    figures = [f"| {name} | {_figure(value)} |" for name, value in result["figures"].items()]
    return "\n".join(
        [
            f"**The paper's claim: {result['verdict']}** ({result['seeds']} seeds, {hours:.2f} h of one core).",
            "",
            "| claim | outcome | mean [interval] | n | range |",
            "|---|---|---|---|---|",
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
        tree = parse_json(read_regular(file))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not a study's result ({error}); give the directory of a finished study") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: not a study's result; give the directory of a finished study")
    return tree


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
