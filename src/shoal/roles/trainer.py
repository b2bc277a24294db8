"""The trainer: waits for a step's rollouts, trains on them, publishes the next version, keeps a checkpoint.

Step k uses submissions made for step k alone, so none can be used in two steps; their version is in
k - async_level .. k because the store refuses the others. A version is published first, for workers wait for it; its
checkpoint is written while the next step goes on. Versions that no checkpoint backs are retracted on resume, and what
was generated with them is refused by its hash.

The loop runs on rank 0 alone, which is the only rank where there is one process; what the ranks of a sharded trainer do
together is in `roles/trainer_rank.py`.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from shoal.config import RunConfig
from shoal.devices import set_up
from shoal.errors import DivergedError, NoSignalError
from shoal.files import locked, whole_directory
from shoal.protocol.pacing import is_collected
from shoal.protocol.stores import RolloutStore, WeightChannel
from shoal.protocol.submission import Submission
from shoal.protocol.version_directory import TABLE
from shoal.protocol.work import work_of
from shoal.roles.session import JoinOptions, OpenStore
from shoal.roles.trainer_rank import Ranks
from shoal.roles.training_flops import TrainingFlops
from shoal.roles.warning_signs import WarningSigns
from shoal.rundir import RUN_FILE, TAKEOVER_S, RunDir, limits_of, run_removed
from shoal.tasks.build import build_source
from shoal.tasks.difficulty import Answered, Rates, Sampler
from shoal.telemetry.metrics import MetricsWriter
from shoal.telemetry.status import StatusFile
from shoal.telemetry.waiting import Patience
from shoal.train.adapter_versions import AdapterVersions
from shoal.train.batch import StepGroups, sort_groups, staleness
from shoal.train.checkpoint import Progress
from shoal.train.distributed import ALONE, World, check_same_config, joined_world
from shoal.train.flops import utilisation
from shoal.train.learner import build_learner
from shoal.train.step import StepResult

POLL_S = 0.01


@dataclass(slots=True)
class Trainer:
    """The one role that changes the policy."""

    run_dir: RunDir
    config: RunConfig
    channel: WeightChannel
    store: RolloutStore
    ranks: Ranks
    status: StatusFile
    metrics: MetricsWriter
    progress: Progress = field(default_factory=lambda: Progress(0, 0, {}))
    publisher: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "publisher"))
    publishing: Future[None] | None = None
    sampler: Sampler | None = None
    """Says which tasks are asked more often, where the run has one."""
    signs: WarningSigns = field(init=False)
    flops: TrainingFlops = field(init=False)

    def __post_init__(self) -> None:
        self.signs = WarningSigns(self.config.train.watch, self.metrics)
        self.flops = TrainingFlops(self.ranks.learner.policy, self.config)

    def run(self) -> None:
        """Trains from wherever the last checkpoint left off to the last step."""
        if self.sampler is not None:
            self.progress = replace(self.progress, rates=self.sampler.start())
        self.metrics.write("model", **self.flops.model())
        self._resume()
        while self.progress.version < self.config.steps:
            began = time.monotonic()
            step = self.progress.version
            submissions, groups, result, trained = self._train(step)
            self._advance(step, submissions, result)
            self._report(step, submissions, groups, result, began, trained)
            self._stop_if_diverged(step)
            self._stop_if_warned()
        self._finish_publishing()
        self._export()
        self.ranks.end()
        self.status.done(f"{self.config.steps} steps trained")

    def _resume(self) -> None:
        self.status.working("loading the last checkpoint")
        progress, damaged = self.ranks.load()
        for text in damaged:
            self.metrics.write("note", text=text)
        if progress is not None:
            self.progress = progress
            self._refuse_if_diverged()
            self.signs.resume(self.run_dir.path / "metrics" / "trainer.jsonl", progress.version)
            self.signs.refuse_if_stopped(progress.version)
            self.metrics.write("note", text=f"going on with step {progress.version}")
        if lost := self.channel.retract(self.progress.version):
            self.metrics.write("note", text=f"retracted versions {lost}, which no checkpoint backs")
        if self.progress.version and not self.channel.is_whole(self.progress.version):
            self._publish()
            self._finish_publishing()

    def _train(self, step: int) -> tuple[list[Submission], StepGroups, StepResult, float]:
        """Trains on what was collected, again without the files whose log-probs turn out not to be the policy's."""
        submissions: list[Submission] = []
        turned_down = 0
        while True:
            submissions, groups = self._collect(step, submissions)
            self.status.working(f"training step {step}")
            trained = time.monotonic()
            chosen = groups.trained(self.config.train.online_filter)
            result = self.ranks.train(chosen, step)
            if not result.off:
                result.turned_down = turned_down
                return submissions, groups, result, trained
            for submission, gap in result.off.items():
                most = self.config.audit.thresholds.logprob
                reason = f"a log-prob is {gap:.4g} off the trainer's own, at most {most:g} may be"
                self.store.turn_down(step, submission, reason)
            turned_down += len(result.off)
            submissions = [s for s in submissions if s.lease.submission not in result.off]

    def _collect(self, step: int, submissions: list[Submission]) -> tuple[list[Submission], StepGroups]:
        """Waits until enough groups are in, or until no more will be sampled for this step.

        It waits for as long as the coordinator answers: files that do not come, or are not judged, may come later, and
        a run that ended because of them would be anybody's to end.
        """
        needed = self.config.train.groups_per_step
        most = self.config.train.max_groups
        online_filter = self.config.train.online_filter
        wanted = "groups with signal" if online_filter else "groups"
        groups = sort_groups(submissions, normalise=self.config.train.advantage_std)
        patience = Patience(self.metrics, self.config.patience_s)
        while groups.filling(online_filter) < needed:
            arrived = list(self.store.accepted(step))
            if arrived:
                submissions = submissions + arrived
                groups = sort_groups(submissions, normalise=self.config.train.advantage_std)
                patience.progressed()
                continue
            count = self.store.count(step)
            if is_collected(groups.filling(online_filter), groups.seen, count.leased, needed=needed, most=most):
                break
            unjudged = count.seen - groups.seen
            who = "validator" if unjudged > 0 and not count.leased else "worker"
            text = f"rollouts of step {step}: {groups.filling(online_filter)} of {needed} {wanted}"
            self.status.waiting(text, who, None)
            patience.waits(f"{text}; {count.leased} groups are leased, {max(0, unjudged)} wait for a verdict")
            time.sleep(POLL_S)
        if not groups.trained(online_filter):
            raise NoSignalError(_no_signal(step, groups, self.config))
        if groups.filling(online_filter) < needed:
            self.metrics.write(
                "note",
                text=f"step {step} trains on {len(groups.signal)} of {needed} groups: "
                f"{groups.seen} were sampled and the others had no signal",
            )
        return submissions, groups

    def _advance(self, step: int, submissions: list[Submission], result: StepResult) -> None:
        """Makes step + 1 the new state, for everyone first and then on disk."""
        if not (self.run_dir.path / RUN_FILE).exists():  # nothing of a run that was removed is to come back
            raise run_removed(self.run_dir.path)
        bad = self.progress.bad_steps + 1 if not result.losses else 0
        used = {s.lease.submission: s.version for s in submissions}
        self.progress = Progress(step + 1, bad, self.progress.used | {step: used}, self._rates(submissions))
        self._publish()
        every, kept = self.config.train.checkpoint_every, self.config.keep.rollouts
        if self._is_checkpointed(step + 1):
            self.ranks.save(self.progress)  # the checkpoint before is whole now; this one may never be
            if kept:
                self.store.forget(max(0, min(step + 1 - kept, step // every * every)))

    def _is_checkpointed(self, version: int) -> bool:
        return version == self.config.steps or version % self.config.train.checkpoint_every == 0

    def _write_last(self) -> None:
        """Waits for the checkpoint of this version, at which the run ends, and makes it if none was due: a restart
        must find why it ended."""
        if not self._is_checkpointed(self.progress.version):
            self.ranks.save(self.progress)
        self.ranks.finish_writing()

    def _rates(self, submissions: list[Submission]) -> Rates | None:
        """What is known of the tasks now; answers without signal tell as much of them as others."""
        if self.sampler is None or self.progress.rates is None:
            return None
        answers = [
            Answered(sample.source, sample.task, reward >= 1.0)
            for submission in submissions
            for sample in submission.rollouts
            if (reward := sample.task_reward) is not None
        ]
        return self.sampler.after(self.progress.rates, answers)

    def _publish(self) -> None:
        """Writes the version's files; a thread hashes and announces them, which the next step does not wait for."""
        self._finish_publishing()
        rates = self.progress.rates
        table = self.sampler.table(rates) if self.sampler is not None and rates is not None else None
        with ExitStack() as stack:
            staging = stack.enter_context(self.channel.publish(self.progress.version))
            stack.callback(self.ranks.publish(staging))
            if table is not None:
                (staging / TABLE).write_text(table.to_json())
            self.publishing = self.publisher.submit(stack.pop_all().close)

    def _finish_publishing(self) -> None:
        """Waits until the last version is out; what went wrong with it is raised here."""
        if self.publishing is not None:
            self.publishing.result()
            self.publishing = None

    def _report(
        self,
        step: int,
        submissions: list[Submission],
        groups: StepGroups,
        result: StepResult,
        began: float,
        trained: float,
    ) -> None:
        now, learner = time.monotonic(), self.ranks.learner
        metrics = result.metrics()
        chosen = groups.trained(self.config.train.online_filter)
        samples = [s for g in chosen for s in g.samples]
        lag = staleness(step, chosen)
        everything = [r for s in submissions for r in s.rollouts]
        # Beside the step's own entry, which pages and sinks show: with many files it is long.
        made = {str(s.lease.submission): work_of(s.rollouts).to_json() for s in submissions}
        self.metrics.write("collected", step=step, generated=made)
        self.metrics.write(
            "step",
            step=step,
            version=step + 1,
            reward=groups.reward,
            solve_rate=groups.solve_rate,
            reward_parts=groups.parts,
            completion_tokens_mean=sum(r.drawn_count for r in everything) / len(everything),
            truncated=sum(r.finish == "length" for r in everything) / len(everything),
            lr=learner.optimizer.param_groups[0]["lr"],
            samples=len(samples),
            samples_seen=len(everything),
            groups=len(chosen),
            groups_all_right=groups.all_right / groups.seen,
            groups_all_wrong=groups.all_wrong / groups.seen,
            groups_failed=groups.failed / groups.seen,
            staleness_mean=lag.mean,
            staleness_max=lag.largest,
            submissions=[s.lease.submission for s in submissions],
            versions=sorted({span.version for s in submissions for span in s.spans}),
            tokens_per_s=result.tokens / (now - trained),
            train_flops=self.flops.trained(samples),
            **utilisation(learner, self.config, result.forward_tokens, now - trained),
            train_s=now - trained,
            step_s=now - began,
            skipped=not result.losses,
            **self._drawn(),
            **metrics,
            **self.signs.look(step, metrics),
            **self.status.shares(),
        )

    def _drawn(self) -> dict[str, object]:
        """Of each source, how often it is solved and what its tasks weigh by now."""
        if self.sampler is None or self.progress.rates is None:
            return {}
        return {"sampler": self.sampler.report(self.progress.rates)}

    def _stop_if_diverged(self, step: int) -> None:
        bad, most = self.progress.bad_steps, self.config.train.max_bad_steps
        if bad:
            self.metrics.write(
                "note",
                text=f"step {step} was skipped: its loss, gradient or weights were not finite "
                f"({bad} in a row, the run stops at {most})",
            )
        if bad >= most:
            self._write_last()
        self._refuse_if_diverged()

    def _stop_if_warned(self) -> None:
        try:
            self.signs.refuse_if_stopped(self.progress.version)
        except DivergedError:
            self._finish_publishing()
            self._write_last()
            raise

    def _refuse_if_diverged(self) -> None:
        bad, train = self.progress.bad_steps, self.config.train
        if bad >= train.max_bad_steps:
            raise DivergedError(
                f"trainer: {bad} steps in a row up to step {self.progress.version - 1} had a loss, gradient or weights "
                f"that are not finite; this run ends here. Start another one with a lower train.lr (now {train.lr}) or "
                f"train.grad_clip (now {train.grad_clip}): shoal run CONFIG --set train.lr={train.lr / 10:g} "
                "--out NEWDIR; if that diverges too, look for NaN in the base model"
            )

    def _export(self) -> None:
        """The trained policy as an ordinary model directory."""
        policy, weights = self.ranks.learner.policy, self.ranks.gather()
        target = self.run_dir.path / "model"
        with whole_directory(target, durable=True, replace=True) as staging:  # a shorter run may have left one
            if self.ranks.adapters is not None:
                self.ranks.adapters.write_model(staging, weights)
                return
            policy.model.save_pretrained(staging, state_dict=weights)
            policy.tokenizer.save_pretrained(staging)


def _no_signal(step: int, groups: StepGroups, config: RunConfig) -> str:
    right, wrong, failed = (n / groups.seen for n in (groups.all_right, groups.all_wrong, groups.failed))
    if failed > max(right, wrong):
        cause = f"the scorer failed, first with: {groups.error}"
    elif wrong >= right:
        cause = (
            "the tasks are too hard for this model: make them easier (tasks.options), sample more answers "
            f"(sampling.group_size, now {config.sampling.group_size}), or warm the model up longer"
        )
    else:
        cause = "the tasks are solved: make them harder (tasks.options) or stop here"
    return (
        f"trainer: step {step}: none of {groups.seen} groups has signal ({right:.0%} all right, {wrong:.0%} all wrong, "
        f"{failed:.0%} with a failed scorer); {cause}"
    )


def start_trainer(run: RunDir, options: JoinOptions) -> None:
    """Runs a trainer in this process until the run is done: all of it, or one rank of it under torchrun."""
    device = set_up(run.config.device_of("train"), run.config.train.threads, "train.device")
    with joined_world(device) as world:
        check_same_config(world, run.config)
        if not world.is_first:
            Ranks(build_learner(run.base_model, run.config, world), run.config, run.checkpoints).follow()
            return
        taken = f"trainer: another one is at work in {run.path}; a run has one trainer"
        with (
            locked(run.path / "locks" / "trainer", taken, wait_s=TAKEOVER_S),
            run.role("trainer") as (status, metrics),
            options.trainer(run, status) as (channel, open_store),
        ):
            build_trainer(run, channel, open_store, status, metrics, world).run()


def build_trainer(
    run: RunDir,
    channel: WeightChannel,
    open_store: OpenStore,
    status: StatusFile,
    metrics: MetricsWriter,
    world: World = ALONE,
) -> Trainer:
    """A trainer with the base model, a fresh optimizer and what the config calls for; `run` loads its checkpoint."""
    config = run.config
    status.working("loading the base model")
    ranks = Ranks(build_learner(run.base_model, config, world), config, run.checkpoints)
    if config.train.lora is not None:
        ranks.adapters = AdapterVersions(run, config.train.lora)
    store = open_store(
        limits_of(config, ranks.learner.policy.vocab),
        lambda file, reason: metrics.write("refused", file=file, reason=reason),
    )
    trainer = Trainer(run, config, channel, store, ranks, status, metrics)
    if config.sampler.kind != "uniform":
        trainer.sampler = Sampler(build_source(config.tasks), config.sampler)
    return trainer
