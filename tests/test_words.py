"""Plain words: no docstring, comment, message or page has a phrase that we avoid, and pages name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ONE, THING = (
    r"\b(?:an?|one)",
    r"(?:entry|line|row|file|folder|result|signature|inverse|point|class|module|bundle|request)",
)
EACH = r"(?:entry|line|row|file|folder|value|chunk|point|piece|slot|version|role|check|submission|kind|token|node|step)"
PLACE = r"(?:in|inside|beside|about|near|nearer|here|there|nowhere|on|under|at|within)"
# What to write instead: "available", "again", "missing" or "invalid", "fix", "permission", "banned", "is not a valid",
# "is stored in", "handles", "a node that ...", "do not share a quota", "one file per check".
BANNED = [
    r"\bto be had\b",
    r"\banew\b",
    r"(?<!there )\bis none\b",
    r"\bthere is none of that name\b",
    r"\bmend(?:s|ed|ing)?\b",
    r"\b[Ll]eave to (?:ask|work|send|write|submit|join)\b",
    r"\b(?:is|are|was|were|be|been|being) put out\b",
    r"\b[Ww]hoever\b",
    r"(?<![Tt]here )\b(?:is|are|was|were) no (?!(?:longer|more|better|worse|one)\b)[A-Za-z]+",
    rf"\b(?:lie|lies|lay) {PLACE}\b(?! \[)",
    r"\b(?:[Ww]here|[Hh]ow (?:far|near)|[Ww]hat) (?:[\w'-]+ ){0,6}lies?\b",
    r"\b(?:it|that|may|server|relay|coordinator|what|tasks|nothing in the folder) bears?\b",
    r"\bnothing to each other\b|\bnobody is anything\b",
    r"(?:^|[.:;] )(?:#|\"\"\"|\s)*Who (?:is refused|was refused|drew|sends|joins|waits out)\b",
    rf"{ONE} {THING} an? {EACH}\b(?! of)",
    rf"\bone an? {EACH}\b(?=[,;.)])",
    rf"\b(?:bytes|requests|tokens|files) an? (?:second|{EACH})\b",
]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
FOLDERS = ("src", "tests", "benchmarks", "examples")
SOURCES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
# A path in backticks, as seen from the root, from the package, or from a folder that its page is about.
NAMED = re.compile(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|toml|md|vy))`")
SEEN_FROM = ("", "src/shoal", "src/shoal/ledger", "src/shoal/shardcast", "src/shoal/coordinator", "src")


def banned_in(text: str) -> list[str]:
    return [match[0] for phrase in BANNED for match in re.finditer(phrase, text, re.MULTILINE)]


@pytest.mark.parametrize("path", PAGES + SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_and_no_source_uses_a_phrase_that_we_avoid(path: Path) -> None:
    found = banned_in(path.read_text())
    assert not found, f"{path.relative_to(ROOT)}: {found}; see BANNED in {__file__} for what to write instead"


def test_the_phrases_are_found_where_they_are() -> None:
    assert banned_in("It is not to be had; start the run anew.") == ["to be had", "anew"]
    assert banned_in("Where uploads go: one file a check.") == ["one file a check"]
    assert banned_in("Line 3 is no JSON; the relay lies inside this network.") == ["is no JSON", "lies inside"]
    assert banned_in("Where the key of a role lies: one a node, at 5 bytes a second.") == [
        "Where the key of a role lies",
        "one a node",
        "bytes a second",
    ]
    assert banned_in("if there is none, x is None; g lies in [-3, 22]; one file per check") == []
    assert banned_in("A relay that lies is paused; there is no other; it is no longer asked; once a second") == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_names_only_files_that_exist(path: Path) -> None:
    names = set(NAMED.findall(path.read_text()))
    missing = sorted(name for name in names if not any((ROOT / place / name).exists() for place in SEEN_FROM))
    assert not missing, f"{path.relative_to(ROOT)} names files that do not exist: {missing}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_links_only_to_pages_that_exist(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text())
    missing = sorted({link for link in links if not (path.parent / link).exists()})
    assert not missing, f"{path.relative_to(ROOT)} links to {missing}"
