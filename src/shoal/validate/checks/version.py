"""Version check: a file begins with the version that its lease names, and a version is its content, not its number."""

from collections.abc import Callable

from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding

CHECK = "version"


def check_version(submission: Submission, root_of: Callable[[int], str | None]) -> Finding | None:
    """`root_of` gives the root hash of a published version, None of one that is not available."""
    lease, version = submission.lease, submission.version
    if version != lease.version:
        return Finding(CHECK, f"{lease} is for version {lease.version}", version, lease.version)
    for span in submission.spans:
        root = root_of(span.version)
        if root is None:
            rule = f"version {span.version}, which it was made with, is published"
            return Finding(CHECK, rule, span.weights[:64], None)
        if span.weights != root:
            rule = f"version {span.version} is what was published under that number"
            return Finding(CHECK, rule, span.weights[:64], root)
    return None
