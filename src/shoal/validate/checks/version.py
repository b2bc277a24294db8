"""Version check: the lease names the versions it allows, and a version is its content, not its number."""

from collections.abc import Callable

from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding

CHECK = "version"


def check_version(submission: Submission, root_of: Callable[[int], str | None]) -> Finding | None:
    """`root_of` gives the root hash of a published version, None of one that is not available."""
    lease, version = submission.lease, submission.version
    if not lease.oldest <= version <= lease.newest:
        rule = f"step {lease.step} takes versions {lease.oldest}..{lease.newest}"
        return Finding(CHECK, rule, version, f"{lease.oldest}..{lease.newest}")
    root = root_of(version)
    if root is None:
        return Finding(CHECK, "a file is made with a version that is published", version, None)
    if submission.weights != root:
        rule = f"version {version} is what was published under that number"
        return Finding(CHECK, rule, submission.weights[:64], root)
    return None
