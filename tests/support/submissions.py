"""Leases, rollouts and submissions with one thing changed, and a validator that looks at formats alone."""

import time
from dataclasses import replace
from typing import Any

from shoal.errors import RolloutError
from shoal.protocol.lease import Lease
from shoal.protocol.rollout import Rollout, logprobs_of, tokens_of
from shoal.protocol.rollout_rules import Limits
from shoal.protocol.stores import RolloutStore
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding, Verdict

WORDS = {"min_word_len": 3, "max_word_len": 5}
LIMITS = Limits(group_size=4, vocab=260, max_prompt_tokens=16, max_new_tokens=8)
ROOT = "ab" * 32


def make_lease(**changes: Any) -> Lease:
    """Lease for two groups of step 3, made with version 3."""
    lease = Lease(
        run="test",
        node="worker-0",
        step=3,
        submission=0,
        version=3,
        groups=2,
        beacon=7,
        deadline=time.time() + 600,
    )
    return replace(lease, **changes)


def make_rollout(group: int = 0, sample: int = 0, **changes: Any) -> Rollout:
    """A sample within LIMITS; every second one of a group is right."""
    rollout = Rollout(
        group=group,
        sample=sample,
        source="spell_backward",
        task=11 + group,
        prompt=tokens_of([5, 6, 7 + group]),
        completion=tokens_of([20 + sample, 30, 1]),
        logprobs=logprobs_of([-0.5, -1.25, -0.125]),
        finish="eos",
        reward=float(sample % 2),
        advantage=1.0 if sample % 2 else -1.0,
        error="",
        proof=bytes(258),
    )
    return changed(rollout, **changes)


def changed(rollout: Rollout, **changes: Any) -> Rollout:
    """The sample with some fields replaced; tokens and log-probs may be given as lists."""
    kinds: dict[str, Any] = {"prompt": tokens_of, "completion": tokens_of, "logprobs": logprobs_of}
    return replace(rollout, **{name: kinds.get(name, lambda same: same)(value) for name, value in changes.items()})


def make_submission(
    lease: Lease, *, version: int | None = None, weights: str = ROOT, group_size: int = LIMITS.group_size
) -> Submission:
    """What an honest worker would hand in under `lease`: every group has signal."""
    rollouts = [make_rollout(group, sample) for group in range(lease.groups) for sample in range(group_size)]
    return Submission(lease, lease.version if version is None else version, weights, rollouts)


def judge_formats(store: RolloutStore, first: int, last: int) -> None:
    """Judges what waits as a validator would that looks at formats alone."""
    for upload in store.waiting(first, last):
        try:
            _, sha256 = store.read(upload)
        except RolloutError as error:
            finding = Finding("format", "a file is what its lease asks for", upload.path.name, str(error))
            store.judge(upload, Verdict(False, "", False, finding))
        else:
            store.judge(upload, Verdict(True, sha256, False))
