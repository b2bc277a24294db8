"""The threat model names tests that are there: a claim whose test is renamed or removed is noticed."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = re.findall(r"`([\w/]*test_\w+(?:\.py)?)`", PAGE)


def test_every_test_that_the_threat_model_names_exists() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    files = [name for name in NAMED if name.endswith(".py")]
    missing = [name for name in files if not any((ROOT / place / name).is_file() for place in ("", "tests/attacks"))]
    missing += [name for name in set(NAMED) - set(files) if f"def {name}(" not in source]
    assert len(NAMED) > 40
    assert not missing, f"docs/security.md names tests that do not exist: {sorted(missing)}"


def test_every_row_of_an_attack_names_a_test() -> None:
    section = PAGE[PAGE.index("## A machine that is lent") : PAGE.index("## Which defaults protect")]
    rows = [line for line in section.splitlines() if line.startswith("|") and not line.startswith(("|---", "| attack"))]
    unproven = [row for row in rows if "test_" not in row.rsplit("|", 2)[1]]
    assert len(rows) > 30
    assert not unproven, f"docs/security.md has rows without a test: {unproven}"
