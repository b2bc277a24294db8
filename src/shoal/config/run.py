"""The root of the tree, and the rules that hold between its tables."""

from typing import Any, Self

from pydantic import Field, model_validator

from shoal import clocks
from shoal.config.audit import AuditConfig
from shoal.config.ledger import PLANTS, LedgerConfig
from shoal.config.log import LogConfig
from shoal.config.model import ModelConfig, SamplingConfig, TurnsConfig
from shoal.config.swarm import KeepConfig, SwarmConfig
from shoal.config.table import RUN_NAME, DeviceName, DeviceTable, Positive, Table
from shoal.config.tasks import LengthConfig, SamplerConfig, TaskConfig
from shoal.config.train import EvalConfig, TrainConfig
from shoal.config.workers import CheaterConfig, WorkerConfig
from shoal.rollout_size import MAX_BYTES, PROOF_TOKENS, file_room


class RunConfig(Table):
    """A whole run."""

    name: str = Field(pattern=RUN_NAME, description="Name of the run and of its directory.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all of the run's randomness.")
    steps: Positive = Field(description="Training steps; step k yields policy version k + 1.")
    async_level: int = Field(2, ge=0, le=64, description="Step k accepts rollouts of versions k - async_level .. k.")
    wait_s: float | None = Field(
        None,
        gt=0,
        description="Seconds after which a role gives up on a coordinator or relay that does not answer, and which "
        "validators have for a vote. For files and versions roles keep waiting, and report it each time this has "
        "passed. Default: a quarter of a new node's lease, at least 600 and at most 3600.",
    )
    device: DeviceName = Field(
        "auto",
        description="What roles of this run compute on: cpu, cuda or mps; auto: the first of cuda, mps and cpu that "
        "their machine has. A machine that joins from elsewhere chooses for itself (--device).",
    )
    model: ModelConfig = ModelConfig()
    tasks: list[TaskConfig] = Field(min_length=1, description="Sources of tasks.")
    sampling: SamplingConfig = SamplingConfig()
    turns: TurnsConfig = TurnsConfig()
    length: LengthConfig = LengthConfig()
    sampler: SamplerConfig = SamplerConfig()
    train: TrainConfig = TrainConfig()
    workers: WorkerConfig = WorkerConfig()
    cheaters: list[CheaterConfig] = Field(default_factory=list, description="Workers that cheat, one table per worker.")
    audit: AuditConfig = AuditConfig()
    eval: EvalConfig = EvalConfig()
    keep: KeepConfig = KeepConfig()
    swarm: SwarmConfig = SwarmConfig()
    ledger: LedgerConfig = LedgerConfig()
    log: LogConfig = LogConfig()

    @property
    def max_len(self) -> int:
        """The longest sequence, prompt and answer."""
        return self.sampling.max_prompt_tokens + self.sampling.max_new_tokens

    @property
    def file_tokens(self) -> int:
        """Most tokens that are generated for a rollout file."""
        return self.workers.groups_per_submission * self.sampling.group_size * self.sampling.max_new_tokens

    @property
    def new_lease_s(self) -> float:
        """Seconds that a lease of a node without accepted files lasts."""
        return self.workers.lease_s or clocks.newcomer_lease_s(self.file_tokens)

    @property
    def patience_s(self) -> float:
        """Seconds that roles wait: `wait_s`, or what follows from the longest file."""
        return self.wait_s or clocks.wait_s(self.new_lease_s)

    @property
    def max_file_bytes(self) -> int:
        """Most bytes of a rollout file of this run."""
        sampling = self.sampling
        samples = self.workers.groups_per_submission * sampling.group_size
        return file_room(samples, sampling.max_prompt_tokens, sampling.max_new_tokens, self.max_turns)

    @property
    def max_turns(self) -> int:
        """Most turns of an answer: one, unless tasks are environments."""
        return self.turns.max if self.has_environments else 1

    @property
    def has_environments(self) -> bool:
        """Whether answers to some tasks are episodes, whatever their most turns are."""
        return any(task.source.startswith("environment/") for task in self.tasks)

    @property
    def unverified(self) -> list[str]:
        """Names of the environments whose observations and rewards are taken on their workers' word."""
        lines = [task for task in self.tasks if task.unverified == "accept"]
        return [task.environment_name for task in lines]

    def device_of(self, role: DeviceTable) -> DeviceName:
        """What a role of this run computes on."""
        own: DeviceName | None = getattr(self, role).device
        return own or self.device

    @model_validator(mode="before")
    @classmethod
    def _watches_strangers(cls, tree: Any) -> Any:
        """Plants samples by default if the config names validators: they may belong to someone else."""
        if not isinstance(tree, dict) or not isinstance(swarm := tree.get("swarm", {}), dict):
            return tree
        ledger = tree.get("ledger", {})
        if not swarm.get("validators") or not isinstance(ledger, dict) or "plants" in ledger:
            return tree
        return {**tree, "ledger": {**ledger, "plants": PLANTS}}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.train.token_budget < self.max_len:
            raise ValueError(
                f"train.token_budget = {self.train.token_budget}: must hold the longest sample, "
                f"sampling.max_prompt_tokens + sampling.max_new_tokens = {self.max_len}; raise it or shorten the sample"
            )
        if self.length.targets and max(self.length.targets) > self.sampling.max_new_tokens:
            raise ValueError(
                f"length.targets = {self.length.targets}: the longest answer, sampling.max_new_tokens, is "
                f"{self.sampling.max_new_tokens}; raise that or lower the targets"
            )
        if self.length.targets and "{prompt}" not in self.length.prompt:
            raise ValueError(f"length.prompt = {self.length.prompt!r}: must contain {{prompt}}, the prompt without it")
        if self.max_file_bytes > MAX_BYTES:
            raise ValueError(
                f"workers.groups_per_submission = {self.workers.groups_per_submission}: with "
                f"{self.sampling.group_size} answers per group of up to {self.sampling.max_new_tokens} tokens its "
                f"file may have {self.max_file_bytes:,} bytes, and at most {MAX_BYTES:,} are read; lower one of them"
            )
        self._in_flight_can_work()
        self._engines_fit()
        self._numbers_fit()
        self._clocks_can_work()
        self._judged_by_enough()
        if self.train.optimizer_steps > self.train.groups_per_step:
            raise ValueError(
                f"train.optimizer_steps = {self.train.optimizer_steps}: each needs a group, and "
                f"train.groups_per_step is {self.train.groups_per_step}; lower the first or raise the second"
            )
        # After a resume from the oldest checkpoint that may be the newest, its rollouts' versions must still be there.
        fewest = self.async_level + self.train.checkpoint_every + 1
        if self.keep.versions < fewest:
            raise ValueError(
                f"keep.versions = {self.keep.versions}: async_level {self.async_level} and train.checkpoint_every "
                f"{self.train.checkpoint_every} need at least {fewest} versions on disk; raise keep.versions"
            )
        return self

    def _in_flight_can_work(self) -> None:
        if not self.workers.in_flight:
            return
        if self.async_level < 1:
            raise ValueError(
                "workers.in_flight = true: async_level = 0 takes rollouts of one version only, so no answer can go on "
                "with another; raise async_level, or leave workers.in_flight out"
            )
        if self.sampling.max_new_tokens <= PROOF_TOKENS:
            raise ValueError(
                f"workers.in_flight = true: answers change versions after whole chunks of {PROOF_TOKENS} tokens, and "
                f"sampling.max_new_tokens is {self.sampling.max_new_tokens}; raise that, or leave it out"
            )
        if self.has_environments:
            raise ValueError(
                "workers.in_flight = true: episodes of environments keep the version that they began with; leave it "
                "out, or the environments"
            )

    def _engines_fit(self) -> None:
        foreign = {"vllm", "vllm-server"} & {self.workers.engine, *self.workers.engines}
        if foreign and self.has_environments:
            raise ValueError(
                f"workers.engine = {min(foreign)!r}: episodes of environments are generated by our own engine alone; "
                "set workers.engine = 'torch', or leave the environments out"
            )
        has_server = "vllm-server" in (self.workers.engine, *self.workers.engines)
        if has_server != bool(self.workers.server):
            raise ValueError(
                f"workers.server = {self.workers.server!r}: goes with workers.engine = 'vllm-server', which is "
                f"{self.workers.engine!r}; give both, or neither"
            )
        if self.workers.server and self.audit.proofs:
            raise ValueError(
                "workers.server: a stock server does not give its hidden states, so its files have no proofs; set "
                "audit.proofs = false if that is meant, and read what is then not caught (docs/stock-server.md)"
            )
        if self.workers.server and self.train.lora is not None:
            raise ValueError("workers.server: a stock server loads whole versions; leave train.lora out")

    def _numbers_fit(self) -> None:
        if self.model.dtype != "float32":
            return
        if not self.audit.enforce:
            raise ValueError(
                "audit.enforce = false: only reports what bfloat16 numbers show, and model.dtype is 'float32', whose "
                "files are judged by audit.thresholds; leave it out, or set model.dtype = 'bfloat16'"
            )
        if self.workers.dtype == "bfloat16":
            raise ValueError(
                "workers.dtype = 'bfloat16': honest workers would be rejected, for model.dtype is 'float32', whose "
                "thresholds bfloat16 does not keep; set model.dtype = 'bfloat16' too, or leave workers.dtype out"
            )
        if self.audit.profiles or self.audit.rates:
            which = "profiles" if self.audit.profiles else "rates"
            raise ValueError(
                f"audit.{which}: is for bfloat16 runs, and model.dtype is 'float32', which is judged by "
                f"audit.thresholds; leave it out, or set model.dtype = 'bfloat16'"
            )

    def _clocks_can_work(self) -> None:
        fastest_s = self.sampling.max_new_tokens / clocks.FASTEST_ANSWER
        if self.workers.lease_s is not None and self.workers.lease_s < fastest_s:
            raise ValueError(
                f"workers.lease_s = {self.workers.lease_s:g}: an answer of sampling.max_new_tokens = "
                f"{self.sampling.max_new_tokens} takes at least {fastest_s:g} s, for no engine gives one answer more "
                f"than {clocks.FASTEST_ANSWER:,.0f} tokens per second; raise it, or leave it out: leases then follow "
                "each node's measured speed"
            )
        checked_s = self.file_tokens / clocks.FASTEST_CHECK
        if self.wait_s is not None and self.ledger.drawn > 1 and self.wait_s < checked_s:
            raise ValueError(
                f"wait_s = {self.wait_s:g}: no validator could vote in time, for a file of up to {self.file_tokens:,} "
                f"tokens takes at least {checked_s:g} s to check; raise it, or leave it out"
            )

    def _judged_by_enough(self) -> None:
        """One of several validators alone decides on nothing, and as many can vote as are needed.

        The run card does not tell who the validators are, so none may be named here.
        """
        count, quorum = len({address.lower() for address in self.swarm.validators}), self.ledger.quorum
        own = self.audit.count
        if own > 1 and quorum > 1:
            raise ValueError(
                f"audit.count = {own}: validators that share the files decide on them alone, and ledger.quorum = "
                f"{quorum} wants several votes on each; name them in swarm.validators, or set ledger.quorum = 1"
            )
        if count > 1 and quorum == 1 and count != own:
            drawn = min(count, 3)
            raise ValueError(
                f"ledger.quorum = 1: swarm.validators names {count}, and what the fastest of them says would stand; "
                f"set ledger.quorum = 2 and ledger.drawn = {drawn}, or audit.count = {count} if all of them are yours"
            )
        if own > 1 and count not in (0, own):
            raise ValueError(f"audit.count = {own}: swarm.validators names {count}; name as many, or none")
        if count and quorum > count:
            raise ValueError(
                f"ledger.quorum = {quorum}: swarm.validators names {count}, so nothing would ever be decided; name "
                "more, or lower it"
            )
