"""The validator's process: what it joins with, loads and starts, and what it remembers of an earlier life."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from shoal.client.client import CoordinatorClient
from shoal.client.honest_rates import RatesFollower
from shoal.client.peer_notes import PeerNotes
from shoal.client.voting import Juror
from shoal.config import RunConfig
from shoal.devices import is_cuda, set_up
from shoal.errors import ConfigError
from shoal.files import locked
from shoal.models.load import load_as
from shoal.protocol.rates.rates_file import read_architecture
from shoal.protocol.stores import roots_of
from shoal.protocol.verdict import NUMBERS
from shoal.roles.session import JoinOptions, ignore_refused
from shoal.roles.validator import Validator
from shoal.rundir import TAKEOVER_S, VALIDATOR, RunDir, is_own, limits_of, validator_names
from shoal.tasks.rewards.scorer import Scorer
from shoal.telemetry.metrics import MetricsWriter, read_metrics
from shoal.validate.audit import Audits
from shoal.validate.checks.all_checks import Checks
from shoal.validate.evidence.vote_log import Votes
from shoal.validate.vllm_states import StatesJob, VllmStates, vllm_for


def past_strikes(path: Path, rates: int = 0, *, by_numbers: bool = False) -> Counter[str]:
    """Rejections that an earlier life of this validator has given, from its metrics; those by numbers as far as they
    were found by this version of the honest rates, and these alone where it is asked for."""
    strikes: Counter[str] = Counter()
    for entry in read_metrics(path):
        if entry["event"] != "verdict" or not entry.get("blamed"):
            continue
        numeric = entry.get("check") == NUMBERS
        if (numeric and entry.get("rates", 0) >= rates) or not (numeric or by_numbers):
            strikes[entry["node"]] += 1
    return strikes


def _noter(metrics: MetricsWriter) -> Callable[[str], None]:
    return lambda text: metrics.write("note", text=text)


def _own_file(run: RunDir, name: str, file: str) -> Path:
    """Where one of several validators in a run's directory keeps something of its own."""
    return run.path / "nodes" / (file if name == VALIDATOR else f"{name}-{file}")


def _states_of_vllm(python: Path, config: RunConfig, device: torch.device, note: Callable[[str], None]) -> VllmStates:
    """vLLM for states, in whose place torch computes where nobody asked for vLLM by name."""
    budget = max(config.audit.token_budget, config.max_len)
    job = StatesJob(config.max_len, budget, config.model.dtype, is_cuda(device))
    return VllmStates(python, job, note if config.audit.engine == "auto" else None)


def start_validator(run: RunDir, options: JoinOptions, name: str = VALIDATOR) -> None:
    """Runs a validator of a run in this process until the run is done."""
    config = run.config
    if is_own(run.path) and name not in (names := validator_names(config)):
        raise ConfigError(
            f"validator {name!r}: audit.count = {config.audit.count} names {', '.join(names)}; give --name"
        )
    device = set_up(config.device_of("audit"), config.audit.threads)
    taken = f"{name}: another one is at work in {run.path}; start one process per validator"
    with (
        locked(run.path / "locks" / name, taken, wait_s=TAKEOVER_S),
        run.role(name) as (status, metrics),
        options.session(run, "validator", name, status, metrics) as session,
    ):
        channel = session.weights
        status.working("loading the newest version")
        first, folder = run.first_version(channel)
        policy = load_as(folder, config.model.dtype, "float32", device)
        store = session.open_store(limits_of(config, policy.vocab), ignore_refused)

        with Scorer(config.tasks, turns=config.turns) as judge, ExitStack() as lines:
            checks = Checks(config, policy, judge.tasks, judge, roots_of(channel), store.table)
            states = None
            if (python := vllm_for(config, device)) is not None:
                states = lines.enter_context(_states_of_vllm(python, config, device, _noter(metrics)))
                states.use(first.number, folder)
                if config.audit.engine == "vllm":  # who asks for it is told at once that it does not start
                    status.working("starting vLLM")
                    states.start()
                checks.compute_states(states.states)
            audits = Audits(config.audit)
            votes = Votes(_own_file(run, name, "votes.jsonl"))

            def line() -> CoordinatorClient:
                return lines.enter_context(CoordinatorClient(session.link.join_at, session.link.key, config.patience_s))

            peers = PeerNotes(line(), votes) if config.audit.count > 1 else None
            validator = Validator(run, channel, store, checks, audits, status, metrics, first, votes=votes, peers=peers)
            if config.model.dtype == "bfloat16":
                kept = _own_file(run, name, "rates.json")
                validator.rates = RatesFollower(
                    session.link.rates, read_architecture(folder), _noter(metrics), kept=kept
                )
                validator.judge_by(validator.rates.table)
            if peers is None:  # otherwise the notes of all validators have them, with one's own
                said, newest = run.path / "metrics" / f"{name}.jsonl", checks.rates.version
                validator.strikes = past_strikes(said, newest)
                validator.by_numbers = past_strikes(said, newest, by_numbers=True)
            if states is not None:
                use = states.use
                validator.files.versions.on_load = lambda version, folder: use(version.number, folder)
            # A connection of its own: votes are sent while files are judged.
            refresh = peers.pull if peers else lambda: None
            validator.juror = Juror(line(), votes, _own_file(run, name, "head.json"), refresh)
            validator.run()
