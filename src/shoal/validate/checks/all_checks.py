"""The order of checks, cheap ones first; the first that fails is the verdict."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shoal.config import RunConfig, TaskConfig
from shoal.errors import RolloutError, WeightsError
from shoal.models.chat import Turns
from shoal.models.load import Policy
from shoal.protocol.lease import Lease, checked_table, no_table
from shoal.protocol.rates.rates_table import RatesTable
from shoal.protocol.rates.shipped import default_rates
from shoal.protocol.spans import noise_of
from shoal.protocol.stores import Version
from shoal.protocol.submission import Submission
from shoal.protocol.verdict import Finding
from shoal.tasks.difficulty import Table, check_fits
from shoal.tasks.environments.source import environments_of
from shoal.tasks.length import target_of, with_lengths
from shoal.tasks.source import Judge, TaskSource
from shoal.validate.checks.blame_margin import graded, widened
from shoal.validate.checks.episodes import EpisodeRules, remembered
from shoal.validate.checks.own_scores import OwnScores
from shoal.validate.checks.proofs import check_computation, check_lengths
from shoal.validate.checks.rewards import CHECK as REWARDS
from shoal.validate.checks.rewards import check_rewards
from shoal.validate.checks.sampling import check_free, check_logprobs, check_seeded
from shoal.validate.checks.tasks import check_tasks
from shoal.validate.checks.termination import check_termination
from shoal.validate.checks.version import CHECK as VERSION
from shoal.validate.checks.version import check_version
from shoal.validate.numerics.alternatives import ROUNDED, Weights
from shoal.validate.numerics.bets import Bets
from shoal.validate.numerics.judge import CONFIRM_NATS, NOISE_ANSWERS, NumericJudge, Weighed, finding_of
from shoal.validate.numerics.ways import check_emulated
from shoal.validate.recompute import NoiseKey, Replayed, StatesOf, replay
from shoal.validate.spans import Load, Part, parts_of, replay_file


@dataclass(slots=True)
class Checks:
    """What a validator needs to judge. The file's format and its lease were checked when it was read."""

    config: RunConfig
    policy: Policy
    tasks: TaskSource
    judge: Judge
    root_of: Callable[[int], str | None]
    table_of: Callable[[Lease], Table | None] = no_table
    rates: RatesTable = field(default_factory=lambda: RatesTable(shipped=default_rates()))
    """What honest machines are off by where numbers are rounded to bfloat16."""
    states: StatesOf | None = field(default=None, init=False)
    """What computes the states of files first; the policy if None."""
    numbers: NumericJudge | None = field(init=False)
    """Judges numbers where they are rounded to bfloat16; thresholds do where they are not."""
    _episodes: EpisodeRules | None = field(default=None, init=False)
    _unsteady: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.numbers = None
        if self.config.model.dtype == "bfloat16":
            check_emulated(self.policy)
            self.numbers = NumericJudge(self.config, self.policy, self._bets())

    def compute_states(self, states: StatesOf | None) -> None:
        """Has the states of files computed by another engine than the policy, or by the policy again."""
        self.states = states
        if self.numbers is not None:
            self.numbers.states = states

    @contextmanager
    def _by_policy(self) -> Iterator[None]:
        """Has the states of files computed by the policy in here, whatever computes them otherwise."""
        engine = self.states
        self.compute_states(None)
        try:
            yield
        finally:
            self.compute_states(engine)

    def judge_by(self, rates: RatesTable) -> None:
        """Judges by another version of the run's honest rates from now on."""
        self.rates = rates
        if self.numbers is not None:
            self.numbers.bets = self._bets()

    def _bets(self) -> Bets:
        return Bets(self.rates.admitted(self.config.audit.profiles))

    def cheap(self, submission: Submission) -> Finding | None:
        """What needs no model; every file must pass it."""
        return self.formal(submission) or self.rewards(submission)

    def formal(self, submission: Submission) -> Finding | None:
        """What needs neither a model nor a scorer: nothing in a file can make it take long."""
        return (
            check_version(submission, self.root_of)
            or self.drawn(submission)
            or (check_lengths(submission, self.policy.hidden_size) if self.config.audit.proofs else None)
            or self.ended(submission)
        )

    def ended(self, submission: Submission) -> Finding | None:
        """Whether every turn ends where it may."""
        turn_tokens = dict.fromkeys(self.environments, self.config.turns.tokens)
        longest = self.config.sampling.max_new_tokens
        return check_termination(submission, self.policy.eos_ids, longest, turn_tokens)

    @property
    def environments(self) -> dict[str, TaskConfig]:
        """The lines of the config whose tasks are played in turns, by name."""
        return environments_of(self.config.tasks)

    def drawn(self, submission: Submission) -> Finding | None:
        """Whether the tasks are those that the lease draws. A table that is not available was taken back with its
        version, which is nobody's fault."""
        lease = submission.lease
        try:
            table = checked_table(lease, self.table_of(lease), self.config.sampler)
        except RolloutError as error:
            return Finding(VERSION, "the table that a lease draws by is published", lease.version, str(error))
        if table is not None:
            check_fits(self.tasks, table)
        config = self.config
        return check_tasks(submission, self.tasks, self.policy.encode_task, config.length, table, config.unverified)

    def costly(self, submissions: Sequence[Submission], load: Load | None = None) -> Iterator[Finding | None]:
        """Computes submissions again, side by side, with the weights that are loaded, which must be those claimed; one
        that names several versions needs `load`, which puts each of them in their place.

        No file is rejected for what another engine computed: the policy computes it once more, and decides. Nothing is
        found by numbers where the run only reports them (`audit.enforce = false`), for a validator or for an arbiter.
        """
        if self.numbers is not None:
            for submission in submissions:
                yield finding_of(self.weigh(submission, load=load)) if self.config.audit.enforce else None
            return
        for submission, found in zip(submissions, self._computed(submissions, load), strict=True):
            if self.states is None or found is None:
                yield found
                continue
            if load is not None:
                load(Version(submission.version, submission.weights))
            with self._by_policy():
                (confirmed,) = self._computed([submission], load)
            yield confirmed

    def _computed(self, submissions: Sequence[Submission], load: Load | None) -> Iterator[Finding | None]:
        """What thresholds say of submissions, by states of the engine that is set."""
        config = self.config
        whole = [submission for submission in submissions if len(submission.spans) == 1]
        samples = [sample for submission in whole for sample in submission.rollouts]
        keys = [key for submission in whole for key in noise_keys(submission, config)]
        temperature, budget = config.sampling.temperature, config.audit.token_budget
        seeded = config.sampling.mode == "seeded"
        noise = config.sampling.noise
        replayed = iter(
            replay(
                self.policy,
                samples,
                keys if seeded else None,
                temperature,
                budget,
                states=self.states,
                noise=noise,
            )
        )
        for submission in submissions:
            if len(submission.spans) > 1:
                own_keys = noise_keys(submission, config) if seeded else None
                load = load or _nothing_else
                own = replay_file(self.policy, submission, own_keys, temperature, budget, load, self.states, noise)
            else:
                own = [next(replayed) for _ in submission.rollouts]
            yield self._compare(submission, own)

    def weigh(
        self,
        submission: Submission,
        alternatives: Sequence[str] = tuple(ROUNDED),
        older: Callable[[Version], Weights | None] = lambda _: None,
        load: Load | None = None,
        own: Callable[[], Weights | None] = lambda: None,
    ) -> Weighed:
        """Numeric evidence against a submission, by the weights that are loaded, which must be those claimed, or that
        `load` puts in their place.

        `older` gives the weights of the version before one, `own` the loaded ones in their files, from where they come
        back after other ones were computed with.

        What bets win on states of another engine counts as far as they win it on the policy's too; less than
        CONFIRM_NATS is taken as it is.
        """
        weighed = self._weighed(submission, alternatives, older, load, own)
        if self.states is None or weighed.most < CONFIRM_NATS:
            return weighed
        with self._by_policy():
            return weighed.at_most(self._weighed(submission, alternatives, older, load, own))

    def _weighed(
        self,
        submission: Submission,
        alternatives: Sequence[str],
        older: Callable[[Version], Weights | None],
        load: Load | None,
        own: Callable[[], Weights | None],
    ) -> Weighed:
        """Numeric evidence by states of the engine that is set."""
        keys = noise_keys(submission, self.config)
        total = Weighed({}, 0)
        for part in parts_of(submission, self.policy.hidden_size):
            if load is not None or len(submission.spans) > 1:
                (load or _nothing_else)(part.version)
            total = total + self._weigh_part(part, keys, alternatives, older(part.version), own())
        return total

    def _weigh_part(
        self,
        part: Part,
        keys: Sequence[NoiseKey],
        alternatives: Sequence[str],
        older: Weights | None,
        own: Weights | None,
    ) -> Weighed:
        assert self.numbers is not None
        self.numbers.measure(part.version.root, self._prompts)
        own_keys = [keys[number] for number in part.numbers]
        return self.numbers.weigh(part.samples, own_keys, alternatives, older, own, part.first)

    def _prompts(self) -> list[list[int]]:
        """Prompts of the run's own, for the judge to answer itself."""
        most = self.config.sampling.max_prompt_tokens
        return [self.policy.encode_task(self.tasks.task("train", number))[:most] for number in range(NOISE_ANSWERS)]

    def _compare(self, submission: Submission, own: Sequence[Replayed]) -> Finding | None:
        draws = check_seeded if self.config.sampling.mode == "seeded" else check_free

        def compared(times: float) -> Finding | None:
            thresholds = widened(self.config.audit.thresholds, times)
            return (
                draws(submission, own, thresholds)
                or check_logprobs(submission, own, thresholds)
                or (check_computation(submission, own, thresholds, times) if self.config.audit.proofs else None)
            )

        return graded(compared)

    def rewards(self, submission: Submission, seconds: float = math.inf) -> Finding | None:
        """Answers that may have been made up are scored for some seconds alone: they could take for ever.

        A finding of `scorer` says that our own one failed, or was not done in time.
        """
        in_turns = self.environments
        rules = self.episodes if in_turns else None
        own = OwnScores(self.policy, self.tasks, self.judge, in_turns, rules, self._unsteady)
        length, seed = self.config.length, submission.lease.seed
        found, finding = own.scores(submission, seconds)
        if finding is not None:
            return finding
        scores = with_lengths(
            found,
            [sample.drawn_count for sample in submission.rollouts],
            [target_of(length, seed, sample.group) for sample in submission.rollouts],
            length,
        )
        scores = own.forgiving(submission, scores)
        finding = check_rewards(submission, scores, normalise=self.config.train.advantage_std)
        if finding is None or finding.check != REWARDS or (number := finding.sample) is None:
            return finding
        # A program may draw lots or look at the clock: nobody is blamed where we ourselves come to another reward.
        if other := own.otherwise(submission, number, found[number], seconds):
            said = f"{found[number].reward}, then {other.reward}"
            return Finding("scorer", "a reward is the same each time", finding.claimed, said, number)
        return finding

    @property
    def episodes(self) -> EpisodeRules:
        """What episodes are held to; a ModelError where the chat template cannot be used for several turns."""
        if self._episodes is None:
            config, policy = self.config, self.policy
            longest, decode = config.sampling.max_new_tokens, remembered(policy.decode)
            self._episodes = EpisodeRules(config.turns, longest, policy.eos_ids, Turns.of(policy), decode)
        return self._episodes


def _nothing_else(version: Version) -> None:
    raise WeightsError(f"version {version.number}: is not loaded, and only the file's first version is here")


def noise_keys(submission: Submission, config: RunConfig) -> list[NoiseKey]:
    """What fixes the noise of each sample: the lease's seed, the sample's number under it, and what later spans have
    for seeds."""
    seed, size = submission.lease.seed, config.sampling.group_size
    later = noise_of(submission.lease, submission.later)
    return [(seed, sample.group * size + sample.sample, later) for sample in submission.rollouts]
