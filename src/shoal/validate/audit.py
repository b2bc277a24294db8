"""Random audits: which files, and which answers of the others, are recomputed; drawn with a secret after the upload."""

import hashlib
import hmac
import os
import random
from collections import Counter

from shoal.config import AuditConfig

FIRST_LOOK = 2


class Audits:
    """Draws files to audit with a secret that never leaves this process; the first files of each node are all drawn."""

    def __init__(self, config: AuditConfig, secret: bytes | None = None) -> None:
        self._config = config
        self._secret = secret or os.urandom(32)
        self._seen: Counter[str] = Counter()

    def drawn(self, node: str, sha256: str) -> bool:
        """Whether the file of that hash is audited. The hash is the file's own, so it was fixed before the draw."""
        self._seen[node] += 1
        if self._config.rate > 0 and self._seen[node] <= self._config.probation:
            return True
        return self._number("file", sha256) < self._config.rate * 2**64

    def spot(self, sha256: str, answers: int) -> list[int]:
        """Which of a file's answers are computed again where the file is not drawn; none at rate 0."""
        count = min(self._config.spot, answers) if self._config.rate > 0 else 0
        return sorted(random.Random(self._number("answers", sha256)).sample(range(answers), count))

    def first_look(self, sha256: str, answers: int) -> list[int]:
        """Which answers of a newcomer's file are computed before the others, so that what is made up costs little."""
        count = min(FIRST_LOOK, answers) if self._config.rate > 0 else 0
        return sorted(random.Random(self._number("first look", sha256)).sample(range(answers), count))

    def _number(self, what: str, sha256: str) -> int:
        digest = hmac.digest(self._secret, f"{what} {sha256}".encode(), hashlib.sha256)
        return int.from_bytes(digest[:8], "big")
