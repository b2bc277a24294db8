"""Honeypots: which keys and files are the owner's planted samples, derived from a secret that only the owner has.

To everybody else they are nodes like others. Coordinator and planter both have the secret, RUN/keys/planter.key, and
compute from it what neither has to tell the other: a file's place (its step and number) says what it is.

A planted file is opened on the ledger when its batch is settled, and with it the address that handed it in. So an
address is for one planted file and is given up with it. Before that it does honest work, or a validator that judges
only the files of newcomers would judge every planted one.
"""

import functools
import hashlib
from typing import Literal

from shoal.crypto.keys import Key
from shoal.ledger.merkle import keccak_words
from shoal.ledger.plant_draw import planted

Letter = Literal["a", "r", "."]
# Of so many places in a row one is for a good file and one for a bad one: an address does one honest file before its
# planted one, on average.
LIFE = 4
MAX_KEYS = 4096
"""Addresses that the coordinator knows; as many files can be planted in a run."""
MAX_FILES = 1 << 20  # of a step


class Plants:
    """The keys of a run's planter, and the meaning of the files that are handed in with them."""

    def __init__(self, secret: Key, run: str) -> None:
        self._secret = hashlib.sha256(f"shoal planter\n{run}\n{secret.export()}".encode()).digest()

    def key(self, number: int) -> Key:
        """The planter's key of this number, up to MAX_KEYS."""
        return Key(keccak_words(self._secret, number, 0))

    @functools.cached_property
    def addresses(self) -> frozenset[str]:
        return frozenset(self.key(number).address for number in range(MAX_KEYS))

    def letter(self, step: int, submission: int) -> Letter:
        """What a file of the planter's is at this place: planted as good, planted as bad, or (.) ordinary work."""
        return planted(self._secret, step * MAX_FILES + submission, LIFE)

    def letter_of(self, node: str, step: int, submission: int) -> Letter:
        """The same for a file of any node's."""
        return self.letter(step, submission) if node in self.addresses else "."

    def draw(self, step: int, submission: int, count: int) -> int:
        """Which of `count` ways a bad file at this place goes wrong in."""
        return int.from_bytes(keccak_words(self._secret, step, submission, 1)) % count
