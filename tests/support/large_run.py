"""A run directory as a long run of a large swarm leaves it: files only, written in a second or two.

Everything is as the roles write it: metrics, status, the coordinator's database and uploads; some of its text is what
a stranger would write who wants to do something to the reader's browser.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from sqlalchemy import create_engine

from shoal.coordinator.archive import HOME, STATE, UPLOADS
from shoal.coordinator.db.schema import leases, metadata, nodes, submissions
from shoal.coordinator.uploads import object_name
from shoal.files import make_directory
from shoal.protocol.lease import Lease
from shoal.protocol.rollout import Rollout, logprobs_of, tokens_of
from shoal.protocol.submission import Submission, write_rollouts
from shoal.protocol.verdict import Finding, Verdict
from shoal.rundir import FORMAT, RUN_FILE
from tests.support.coordinator_in_process import make_config

GROUP = 16
HOSTILE = (
    "<script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 1'>",
    "\u202eevil\u202c עברית العربية",
    "word" * 3000,
    "'\"><svg onload=window.owned=1>{{constructor}}${window.owned=1}",
    "&lt;b&gt; \x1b[31m \x00 \U0001f600",
)
SECRET = "203.0.113.77"
"""A network address that no page may show."""
BEGAN = 1_790_000_000.0


def write_large_run(
    path: Path, *, steps: int = 10_000, node_count: int = 5_000, samples: int = 4_096, answer_bytes: int = 1 << 20
) -> Path:
    """Writes the run; its newest step has `samples` answers, one of which is `answer_bytes` long."""
    config = make_config(
        steps=steps,
        sampling={"group_size": GROUP, "max_new_tokens": answer_bytes, "max_prompt_tokens": 4096},
        swarm={"leases": 3, "store": "", "relays": []},
        train={"groups_per_step": 4, "oversample": 3.0, "token_budget": 1 << 22},
        workers={"groups_per_submission": 2, "lease_s": 7200.0},
    )
    make_directory(path)
    tree = {"format": FORMAT, "created": BEGAN, "config": config.model_dump(mode="json", exclude_none=True)}
    (path / RUN_FILE).write_text(json.dumps(tree))
    _write_tokenizer(path / "weights" / "v000000")
    _write_metrics(path / "metrics", steps)
    _write_status(path / "status", steps)
    _write_records(path, steps - 1, node_count, samples, answer_bytes)
    return path


def step_entry(step: int, rng: Random) -> dict[str, Any]:
    """A line of the trainer's metrics."""
    learnt = 1 / (1 + math.exp(-(step - 2000) / 900))
    return {
        "time": BEGAN + 5.0 * step,
        "event": "step",
        "step": step,
        "version": step + 1,
        "reward": 0.2 + 0.6 * learnt + rng.gauss(0, 0.03),
        "solve_rate": 0.25 + 0.6 * learnt + rng.gauss(0, 0.03),
        "completion_tokens_mean": 200 + 90 * learnt + rng.gauss(0, 6),
        "entropy": 0.85 - 0.55 * learnt + rng.gauss(0, 0.02),
        "grad_norm": 0.12 + abs(rng.gauss(0, 0.03)),
        "clip_low": abs(rng.gauss(0.004, 0.001)),
        "clip_high": abs(rng.gauss(0.0012, 0.0006)),
        "kl": 0.09 * learnt,
        "drift": 0.01,
        "staleness_mean": 1.5,
        "staleness_max": 2,
        "tokens_per_s": 9000 + rng.gauss(0, 400),
        "wait_share": abs(rng.gauss(0.1, 0.05)),
        "samples": 256,
        "groups": 32,
        "waits": {"worker": 0.1},
    }


def append_step(path: Path, step: int) -> None:
    """One more step, as the trainer writes it."""
    with (path / "metrics" / "trainer.jsonl").open("a") as file:
        file.write(json.dumps({**step_entry(step, Random(step)), "time": time.time()}) + "\n")


def _write_tokenizer(folder: Path) -> None:
    """Bytes as tokens, so that a test decides what an answer says."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {piece: n for n, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    make_directory(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_metrics(folder: Path, steps: int) -> None:
    make_directory(folder)
    rng = Random(0)
    with (folder / "trainer.jsonl").open("w") as file:
        file.writelines(json.dumps(step_entry(step, rng)) + "\n" for step in range(steps))
    with (folder / "supervisor.jsonl").open("w") as file:
        file.write(json.dumps({"time": BEGAN, "event": "start", "total_steps": steps}) + "\n")
        for text in HOSTILE:
            note = f"{text[:200]} at http://{SECRET}:7000 and {SECRET}, see /home/owner/secret/file.txt"
            file.write(json.dumps({"time": BEGAN + 9, "event": "note", "text": note}) + "\n")
    with (folder / "evaluator.jsonl").open("w") as file:
        for version in range(0, steps, max(1, steps // 100)):
            passed = 0.3 + 0.5 / (1 + math.exp(-(version - 2000) / 900))
            entry = {"version": version, "tasks": 200, "pass_at_1": passed, "low": passed - 0.06, "high": passed + 0.06}
            file.write(json.dumps({"time": BEGAN + 5.0 * version, "event": "eval", **entry}) + "\n")


def _write_status(folder: Path, steps: int) -> None:
    make_directory(folder)
    for role, doing in (
        ("trainer", f"{steps} steps trained"),
        ("origin", f"serving version {steps} at http://{SECRET}:1"),
    ):
        status = {"role": role, "pid": 1, "state": "done", "doing": doing, "on": "", "since": BEGAN, "beat": BEGAN}
        (folder / f"{role}.json").write_text(json.dumps({**status, "deadline": None}))
    planter = {"role": "planter", "pid": 1, "state": "done", "doing": "planting 3/1", "on": "", "since": 0, "beat": 0}
    (folder / "planter.json").write_text(json.dumps({**planter, "deadline": None}))


def address(number: int) -> str:
    return f"0x{number:040x}"


def node(number: int) -> dict[str, Any]:
    state = ("healthy", "healthy", "healthy", "silent", "gone", "banned")[number % 6]
    return {
        "address": address(number),
        "role": "relay" if number % 500 == 0 else "worker",
        "name": HOSTILE[number % len(HOSTILE)][:60] if number < 12 else f"node-{number}",
        "url": f"http://{SECRET}:9",
        "joined": BEGAN,
        "seen": time.time() - number % 100,
        "state": state,
        "since": BEGAN,
        "reason": "2 files rejected" if state == "banned" else "",
        "doing": f"step 3 submission {number} for http://{SECRET}:7000",
        "waits_on": "",
        "version": 9_990 + number % 3,
        "accepted": number % 70,
        "rejected": number % 6 // 5,
        "samples": 16 * number,
        "tokens": 1000 * number,
        "busy_s": 10.0 + number,
        "refused": "",
        "expired": 0,
        "abandoned": 0,
        "owed": 0,
        "network": "203.0.113.0/24",
        "profile": "",
    }


def _write_records(path: Path, step: int, node_count: int, samples: int, answer_bytes: int) -> None:
    home = path / HOME
    make_directory(home / UPLOADS)
    engine = create_engine(f"sqlite:///{home / STATE}")
    metadata.create_all(engine)
    groups_per_file = 8
    files = list(_files(step, samples, groups_per_file, answer_bytes))
    with engine.begin() as db:
        db.execute(nodes.insert(), [node(number) for number in range(node_count)])
        for lease, data in files:
            db.execute(leases.insert().values(**_lease_row(lease)))
            db.execute(submissions.insert().values(**_file_row(lease, len(data), accept=True)))
            target = home / UPLOADS / object_name(lease.step, lease.submission, "ab" * 32)
            make_directory(target.parent)
            target.write_bytes(data)
        for number in range(200):
            lease = replace(files[0][0], step=step - 1, submission=number, node=address(number % node_count))
            db.execute(leases.insert().values(**_lease_row(lease)))
            db.execute(submissions.insert().values(**_file_row(lease, 10, accept=False, kept=False)))
    engine.dispose()


def _files(step: int, samples: int, groups: int, answer_bytes: int) -> Iterator[tuple[Lease, bytes]]:
    for number in range(max(1, samples // (groups * GROUP))):
        lease = Lease("test", address(12 + number), step, number, step, groups, 7, BEGAN)
        rollouts = [_rollout(number, group, n, answer_bytes) for group in range(groups) for n in range(GROUP)]
        yield lease, write_rollouts(Submission(lease, step, "ab" * 32, rollouts), groups)


def _rollout(number: int, group: int, sample: int, answer_bytes: int) -> Rollout:
    text = HOSTILE[sample % len(HOSTILE)] if group == 0 else f"answer {number} {group} {sample} " + "la " * (sample * 3)
    if (number, group, sample) == (0, 0, 0):
        text = (HOSTILE[0] * (answer_bytes // len(HOSTILE[0]) + 1))[:answer_bytes]
    ids = _ids(text)
    return Rollout(
        group=group,
        sample=sample,
        source="<b>tasks</b>" if group == 0 else "spell_backward",
        task=11 + group,
        prompt=tokens_of(_ids(HOSTILE[group % len(HOSTILE)][:500])),
        completion=tokens_of(ids),
        logprobs=logprobs_of((-np.abs(np.random.default_rng(sample).normal(0, 1, len(ids)))).tolist()),
        finish="eos",
        reward=float((sample * 7 + group) % 5) / 4,
        advantage=1.0 if sample % 2 else -1.0,
        error=HOSTILE[1] if sample == 3 else "",
        proof=b"",
    )


_ALPHABET: dict[int, int] = {}


def _ids(text: str) -> Sequence[int]:
    """Token numbers of a text under the tokenizer above: one per byte, in the order of its alphabet."""
    if not _ALPHABET:
        from tokenizers import pre_tokenizers

        order = {piece: n for n, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in shown]
        pieces = {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
        _ALPHABET.update({byte: order[piece] for byte, piece in pieces.items()})
    return [_ALPHABET[byte] for byte in text.encode("utf-8", "surrogatepass")]


def _lease_row(lease: Lease) -> dict[str, Any]:
    return {
        "step": lease.step,
        "submission": lease.submission,
        "node": lease.node,
        "groups": lease.groups,
        "version": lease.version,
        "beacon": lease.beacon,
        "draw_of": "",
        "given": 1,
        "issued": BEGAN,
        "deadline": lease.deadline,
        "until": lease.deadline,
        "status": "used",
        "network": "203.0.113.0/24",
    }


def _file_row(lease: Lease, size: int, *, accept: bool, kept: bool = True) -> dict[str, Any]:
    finding = Finding("sampling", f"rule of {HOSTILE[0]}", f"token 5 {HOSTILE[1]}", f"{HOSTILE[2]} from {SECRET}", 3)
    verdict = Verdict(accept, "ab" * 32, True, None if accept else finding, samples=8, tokens=40)
    return {
        "step": lease.step,
        "submission": lease.submission,
        "node": lease.node,
        "sha256": "ab" * 32,
        "size": size,
        "groups": lease.groups,
        "signal": lease.groups,
        "received": BEGAN + lease.submission,
        "kept": kept,
        "accept": accept,
        "verdict": verdict.to_json(),
        "judge": address(1),
        "judged": BEGAN + lease.submission + 1,
        "tokens": 40,
        "entered": False,
        "network": "203.0.113.0/24",
        "ordinal": lease.submission + 1,
    }
