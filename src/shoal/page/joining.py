"""Page "join": the lines to copy, what the run needs of a machine, and what it may do to it."""

from pathlib import PurePath

from shoal.client.join_line import coordinator_port
from shoal.config import LedgerConfig, RunConfig
from shoal.coordinator.archive import coordinator_of
from shoal.page.privacy import public_text
from shoal.page.source import RunFiles
from shoal.tasks.files import code_of
from shoal.tasks.package_versions import install_line
from shoal.telemetry.status import ENDED

MAY = (
    "Fetch policy versions from relays. Each piece is checked against what the run's origin signed.",
    "Generate answers with its own threads or GPU, and upload them as files that its key has signed.",
    "Keep weights and unfinished work in the state directory (--home says where).",
)
NEVER = (
    "Read your files or your key: tasks are made and answers scored in a confined process without network.",
    "Start programs of the run's owner on your machine, unless you say --allow-code.",
    "Listen for connections: a worker only makes requests.",
)
STOP = (
    "Ctrl-C ends the worker. A lease that it then holds waits for this machine, which does it first when it comes "
    "back, and owes it until then. What it had earned stays its own, under the key in ~/.config/shoal/node.key.",
    "shoal lend keeps a worker in the background instead: only while nobody uses the machine, and within limits "
    "(--memory, --upload, ...). shoal lend pause frees it at once, and hands its leases back.",
)
CODE = (
    "This run's tasks execute Python of the run's owner on your machine, unconfined: `shoal worker` refuses them "
    "without --allow-code. Give it only to an owner that you trust."
)

OVER = "The run is over: there are no more leases."
AWAY = "The coordinator is not at work now: joining works once the run is started again."


def join_document(files: RunFiles) -> dict[str, object]:
    """How to join, as long as there is something to join."""
    if files.run is None:
        return {
            "line": "",
            "why": files.refused or "The run's config is not here.",
            "may": MAY,
            "never": NEVER,
            "stop": STOP,
        }
    config, state = files.run.config, files.ledger.state
    port = coordinator_port(files.run)
    # A contract is not called, and a ledger may not be here: then the coordinator's records say who it is.
    coordinator = state.coordinator if state is not None else coordinator_of(files.run)
    if coordinator is None or port is None:
        return {"line": "", "why": "The coordinator has not started yet.", **_needs(config)}
    swarm = config.swarm
    url = f"{swarm.scheme}://{swarm.public_host}:{port}"
    is_closed = state is not None and state.closed
    is_over = is_closed or (files.history.total_steps or config.steps) <= files.history.steps_done
    return {
        "line": f"shoal worker --join {url}#{coordinator}",
        "lend": f"shoal lend start {url}#{coordinator} --when idle",
        "install": install_line(config.tasks),
        "why": OVER if is_over else AWAY if _is_away(files) else "",
        "local": swarm.host in ("127.0.0.1", "::1", "localhost"),
        "coordinator": coordinator,
        "closed": swarm.is_closed,
        **_needs(config),
    }


def _is_away(files: RunFiles) -> bool:
    """Whether the coordinator has ended; one on another machine is not known to."""
    return any(status.role == "coordinator" and status.state in ENDED for status in files.statuses)


def _needs(config: RunConfig) -> dict[str, object]:
    source = config.model.source
    sampling = config.sampling
    return {
        "model": PurePath(source).name if "/" in source else source,
        "dtype": config.model.dtype,
        "tasks": sorted({public_text(task.name or task.source) for task in config.tasks})[:20],
        "answer_tokens": sampling.max_new_tokens,
        "prompt_tokens": sampling.max_prompt_tokens,
        "group_size": sampling.group_size,
        "async_level": config.async_level,
        "pay": _pay(config.ledger),
        "code": CODE if any(code_of(task) for task in config.tasks) else "",
        "may": MAY,
        "never": NEVER,
        "stop": STOP,
    }


def _pay(ledger: LedgerConfig) -> str:
    unit = "wei" if ledger.rpc else "credit" if ledger.rate == 1 else "credits"
    return f"{ledger.rate:,} {unit} per accepted token"
