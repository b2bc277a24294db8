"""Acts, and a submission's history on a ledger, in sentences."""

from shoal.errors import LedgerError
from shoal.ledger.acts import Act, Open, Settle, Work
from shoal.ledger.state import State

PLANTED = {"a": "planted as good", "r": "planted as bad"}
OUTCOMES = {"a": "accepted", "r": "rejected", "v": "void", "x": "does not count"}


def explain(state: State, step: int, submission: int) -> list[str]:
    """Who judged a submission, how each voted, the outcome, and any challenge and ruling."""
    for batch in reversed(state.batches):
        for index, leaf in enumerate(batch.leaves):
            if (batch.step, leaf.submission) != (step, submission):
                continue
            said = [f"submission {step}/{submission} of {leaf.node}: file {leaf.sha256}, {leaf.tokens:,} tokens"]
            said.append(f"batch {batch.number}, judged by {', '.join(batch.jury)}")
            for who, reveal in batch.reveals.items():
                vote = reveal.votes[index]
                proof = f", evidence {reveal.evidence[reveal.votes[:index].count('r')]}" if vote == "r" else ""
                said.append(f"{who} said {OUTCOMES[vote]}{proof}")
            said.append(OUTCOMES[batch.outcomes[index]] if batch.outcomes else "not settled yet")
            said += [f"challenged by {who}" for (of, who) in batch.challenges if of == index]
            if index in batch.rulings:
                said.append(f"the arbiter ruled: {OUTCOMES[batch.rulings[index]]}")
            return said
    raise LedgerError(f"submission {step}/{submission}: is not in this ledger")


def sentence(act: Act) -> str:
    """What an entry says, in a few words."""
    if isinstance(act, Work):
        return f"{act.name}: {len(act.leaves)} submissions of step {act.step}"
    if isinstance(act, Settle):
        known = ", ".join(f"{count} {PLANTED[k]}" for k in "ar" if (count := act.plants.count(k)))
        return f"{act.name}{f': {known}' if known else ''}"
    if isinstance(act, Open):
        return f"open, {len(act.terms.validators)} validators, {act.terms.quorum} of {act.terms.drawn} decide"
    fields = act.model_dump(exclude={"kind", "salt", "evidence", "hash", "beacon", "plants"})
    return f"{act.kind} {' '.join(f'{name}={value}' for name, value in fields.items())}"
