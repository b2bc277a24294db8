"""Vendored libraries are what their authors published, with their licences, and a page stays small."""

import hashlib
import json
import re
from pathlib import Path

import shoal.page

STATIC = Path(shoal.page.__file__).parent / "static"
VENDOR = STATIC / "vendor"
MANIFEST = json.loads((VENDOR / "manifest.json").read_text())
MAX_BYTES = 150_000


def test_every_vendored_file_is_pinned_by_hash_and_has_its_licence_beside_it() -> None:
    named = {entry["file"] for entry in MANIFEST}
    for entry in MANIFEST:
        assert hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest() == entry["sha256"], entry["file"]
        for one in (entry, *entry.get("contains", [])):
            named.add(one["licence_file"])
            words = {"MIT": "Permission is hereby granted", "Apache-2.0": "Apache License"}[one["licence"]]
            assert words in (VENDOR / one["licence_file"]).read_text()
    assert {path.name for path in VENDOR.iterdir()} == {*named, "manifest.json"}


def test_nothing_on_a_page_writes_foreign_html_or_runs_text_or_asks_elsewhere() -> None:
    for path in (*STATIC.glob("*.js"), *STATIC.glob("*.css"), STATIC / "index.html"):
        text = path.read_text()
        for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert banned not in text, f"{path.name}: {banned}"
        elsewhere = [
            url for url in re.findall(r"""(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}""", text) if "w3.org" not in url
        ]
        assert not elsewhere, f"{path.name}: {elsewhere}"
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=", (STATIC / "index.html").read_text())


def test_all_scripts_and_styles_together_stay_small() -> None:
    size = sum(path.stat().st_size for path in STATIC.rglob("*") if path.suffix in (".js", ".css"))
    assert size <= MAX_BYTES, f"{size:,} bytes"
