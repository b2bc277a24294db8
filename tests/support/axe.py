"""axe-core, the accessibility audit: fetched once from npm into the cache, and believed by its hash alone."""

import hashlib
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

from shoal.errors import BenchError
from shoal.files import cache_dir, make_directory, write_whole
from tests.support.browser import Page

PACKAGE = "axe-core@4.14.0"
SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
FETCH_S = 120


def axe_source() -> str:
    """The audit as a script; BenchError if it is neither cached nor can be fetched."""
    path = cache_dir() / "programs" / f"{PACKAGE}.min.js"
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        make_directory(path.parent)
        write_whole(path, _fetch())
    return path.read_text()


def _fetch() -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--silent", "--ignore-scripts", PACKAGE]
        try:
            subprocess.run(command, cwd=scratch, check=True, capture_output=True, timeout=FETCH_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise BenchError(f"{PACKAGE}: cannot be fetched ({error})") from error
        with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            data = member.read()
    if (found := hashlib.sha256(data).hexdigest()) != SHA256:
        raise BenchError(f"{PACKAGE}: has SHA-256 {found[:12]}, expected {SHA256[:12]}; do not use it")
    return data


def axe_faults(page: Page, source: str) -> list[str]:
    """What the audit finds on an open page, one line per rule."""
    page.run(f"window.axe ? 1 : (() => {{ {source} \n; return 1; }})()")
    found = page.run(
        "axe.run(document, {resultTypes: ['violations']}).then(r => JSON.stringify(r.violations.map("
        "v => [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + ' ' + (n.any[0]?.message || ''))])))"
    )
    return [f"{name}: {text}: {nodes}" for name, text, nodes in json.loads(found)]


def assert_accessible(page: Page, source: str, what: str) -> None:
    faults = axe_faults(page, source)
    assert not faults, f"{what}: {faults}"
