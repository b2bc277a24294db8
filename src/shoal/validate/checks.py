"""All checks in their order, from cheap to costly; the first that does not pass ends it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shoal.config import RunConfig
from shoal.models.load import Policy
from shoal.rollout.record import Submission
from shoal.tasks.source import Judge, TaskSource
from shoal.validate.computation import check_computation
from shoal.validate.finding import Finding
from shoal.validate.prefill import Replayed, replay
from shoal.validate.rewards import check_rewards
from shoal.validate.sampling import check_free, check_logprobs, check_seeded
from shoal.validate.tasks import check_tasks
from shoal.validate.termination import check_termination
from shoal.validate.version import check_version


@dataclass(slots=True)
class Checks:
    """What a validator needs to judge. The file's format and its lease were checked when it was read."""

    config: RunConfig
    policy: Policy
    tasks: TaskSource
    judge: Judge
    root_of: Callable[[int], str | None]

    def cheap(self, submission: Submission) -> Finding | None:
        """What needs no model; every file must pass it."""
        config = self.config
        return (
            check_version(submission, self.root_of)
            or check_tasks(submission, self.tasks, self.policy.encode)
            or check_termination(submission, self.policy.eos_ids, config.sampling.max_new_tokens)
            or self._rewards(submission)
        )

    def costly(self, submissions: Sequence[Submission]) -> Iterator[Finding | None]:
        """Computes submissions again, side by side, with the weights that are loaded, which must be those claimed."""
        config = self.config
        samples = [sample for submission in submissions for sample in submission.rollouts]
        keys = [noise_key(submission, number, config) for submission in submissions for number in range(len(submission.rollouts))]
        seeded = config.sampling.mode == "seeded"
        replayed = replay(
            self.policy, samples, keys if seeded else None, config.sampling.temperature, config.audit.token_budget
        )
        begin = 0
        for submission in submissions:
            own = replayed[begin : begin + len(submission.rollouts)]
            begin += len(submission.rollouts)
            yield self._compare(submission, own)

    def _compare(self, submission: Submission, own: Sequence[Replayed]) -> Finding | None:
        thresholds = self.config.audit.thresholds
        draws = check_seeded if self.config.sampling.mode == "seeded" else check_free
        return (
            draws(submission, own, thresholds)
            or check_logprobs(submission, own, thresholds)
            or check_computation(submission, own, thresholds)
        )

    def _rewards(self, submission: Submission) -> Finding | None:
        answers = [
            (self.tasks.task("train", sample.task), self.policy.decode(sample.completion))
            for sample in submission.rollouts
        ]
        scores = self.judge.scores("train", answers)
        return check_rewards(submission, scores, normalise=self.config.train.advantage_std)


def noise_key(submission: Submission, number: int, config: RunConfig) -> tuple[int, int]:
    """What fixes the noise of a sample: the lease's seed, and the sample's number under it."""
    sample = submission.rollouts[number]
    return submission.lease.seed, sample.group * config.sampling.group_size + sample.sample
