"""`shoal suites --fetch`: downloads the file of a suite, and takes nothing whose hash is not the pinned one."""

import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import httpx2

from shoal.errors import TaskError
from shoal.evals.paper_suites import PaperSuite, Remote, data_folder
from shoal.files import make_directory, parse_json, whole_directory, whole_file

TIMEOUT_S = 60.0
BLOCK = 1 << 20
# An archive is a few megabytes; one that unfolds to more than this is another one.
MAX_UNPACKED = 256 << 20
# Hears a file's address and how many of its bytes are there.
Heard = Callable[[str, int], None]


def fetch_suite(suite: PaperSuite, heard: Heard) -> Path:
    """Puts a suite's file into the cache, and what judging needs besides; gives where the file is."""
    make_directory(data_folder())
    if suite.extra is not None:
        archive, folder = suite.extra
        _fetch_archive(archive, data_folder() / folder, heard)
    with whole_file(suite.path) as target, target.open("wb") as out:
        for part in suite.parts:
            with tempfile.TemporaryDirectory(dir=data_folder(), prefix=".fetch-") as scratch:
                path = Path(scratch) / "part"
                download(part, path, heard)
                for block in _wanted(path, suite.dates):
                    out.write(block)
    return suite.path


def download(remote: Remote, target: Path, heard: Heard) -> None:
    """Writes a file; TaskError where it cannot be fetched or has another hash, and then it is not used."""
    digest, size = hashlib.sha256(), 0
    try:
        with (
            httpx2.stream("GET", remote.url, follow_redirects=True, timeout=TIMEOUT_S) as response,
            target.open("wb") as out,
        ):
            response.raise_for_status()
            for block in response.iter_bytes(BLOCK):
                digest.update(block)
                out.write(block)
                size += len(block)
                heard(remote.url, size)
    except httpx2.HTTPError as error:
        raise TaskError(
            f"{remote.url}: cannot be fetched ({type(error).__name__}: {error}); fetch it elsewhere, check that its "
            f"SHA-256 is {remote.sha256}, and copy it to {data_folder()}"
        ) from None
    if digest.hexdigest() != remote.sha256:
        raise TaskError(
            f"{remote.url}: has the SHA-256 {digest.hexdigest()} ({size:,} bytes), {remote.sha256} is pinned; "
            "it is another file, and is not used"
        )


def _wanted(path: Path, dates: tuple[str, str] | None) -> Iterator[bytes]:
    """A file as it is; of contest problems, the lines of those that were published within the dates."""
    with path.open("rb") as file:
        if dates is None:
            while block := file.read(BLOCK):
                yield block
            return
        for line in file:
            if line.strip() and dates[0] <= str(parse_json(line)["contest_date"])[:10] <= dates[1]:
                yield line.rstrip(b"\n") + b"\n"


def _fetch_archive(remote: Remote, folder: Path, heard: Heard) -> None:
    """Unpacks an archive; names that lead out of the folder are refused."""
    with whole_directory(folder, replace=True) as target:
        path = target / "archive.zip"
        download(remote, path, heard)
        with zipfile.ZipFile(path) as archive:
            names = [PurePosixPath(info.filename) for info in archive.infolist()]
            if any(name.is_absolute() or ".." in name.parts for name in names):
                raise TaskError(f"{remote.url}: holds names that lead out of its folder; it is not unpacked")
            if sum(info.file_size for info in archive.infolist()) > MAX_UNPACKED:
                raise TaskError(f"{remote.url}: unfolds to more than {MAX_UNPACKED:,} bytes; it is not unpacked")
            archive.extractall(target)
        path.unlink()
