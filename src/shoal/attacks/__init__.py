"""Workers that cheat, each in one way: what the validators are measured against.

They are part of the package because a run can be given some (`[[cheaters]]`), to see them caught. An attack is a
`Maker` that differs from the honest one in one method. Where the cheat could be made consistent with the rest of the
file (states, log-probs and proofs of the text that is handed in), it is: a careless liar proves nothing.
"""

from shoal.attacks.base import ATTACKS, EPISODE_ATTACKS, attack_named

from shoal.attacks import claims, episodes, files, proofs, spans, texts, weights  # isort: skip  # they register themselves

__all__ = [
    "ATTACKS",
    "EPISODE_ATTACKS",
    "attack_named",
    "claims",
    "episodes",
    "files",
    "proofs",
    "spans",
    "texts",
    "weights",
]
