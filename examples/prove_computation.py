"""TOPLOC alone: prove that hidden states were computed, and check the proof with states of one's own.

    python examples/prove_computation.py

Needs numpy, numba and torch; none of the other packages that Shoal installs.
"""

import torch

from shoal import toploc


def main() -> None:
    torch.manual_seed(0)
    states = torch.randn(100, 576).bfloat16()  # the worker's: [tokens, hidden]
    proofs = toploc.build(states)
    print(f"{len(proofs)} bytes prove {len(states)} tokens")

    # The validator computes the states itself, on other hardware: a little rounding noise is honest.
    own = (states.float() * (1 + 0.01 * torch.randn(100, 576))).bfloat16()
    print("same model:     ", "accepted" if toploc.accepts(toploc.verify(own, proofs)) else "rejected")

    # Another model, here other states altogether, is named with the rule that it breaks.
    other = toploc.verify(torch.randn(100, 576).bfloat16(), proofs)
    print("another model:  ", "accepted" if toploc.accepts(other) else f"rejected: {toploc.refusal(other[0])}")


if __name__ == "__main__":
    main()
