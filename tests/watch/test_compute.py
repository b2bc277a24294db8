"""The compute ledger: counts that are those of the real forward pass, added up once, and shown where people look."""

import io
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from shoal.config import RunConfig
from shoal.models.load import Policy
from shoal.protocol.work import Work, group_work, work_of
from shoal.roles.training_flops import TrainingFlops
from shoal.sinks.rows import Rows
from shoal.telemetry.compute import MEMORY, ComputeLedger, Costs
from shoal.telemetry.metrics import Entry
from shoal.train.batch import Group, pack
from shoal.train.learner import build_learner
from shoal.watch import panels
from shoal.watch.history import History
from shoal.watch.show import print_status
from tests.support.roles_in_process import make_config
from tests.support.submissions import make_rollout
from tests.watch.conftest import append, put_status

MODEL: Entry = {"event": "model", "token_flops": 100.0, "head_flops": 10.0, "pair_flops": 1.0}


def config(tiny_dir: Path, **train: object) -> RunConfig:
    return make_config(tiny_dir, train=train)


def test_the_work_of_a_group_is_what_a_packed_forward_pass_feeds() -> None:
    samples = [make_rollout(0, n, completion=list(range(2, 4 + n)), logprobs=[-1.0] * (2 + n)) for n in range(3)]
    (batch,) = pack([Group(samples[0].prompt, samples, [0.0] * 3, 0)], 256)
    work = work_of(samples)
    assert work.fed == batch.layout.tokens == batch.ids_1T.numel()
    assert work.drawn == batch.target_A.numel()


def test_flops_are_those_that_torch_counts_in_the_layers_of_a_forward_pass(tiny_dir: Path, tiny_policy: Policy) -> None:
    flops = TrainingFlops(tiny_policy, config(tiny_dir))
    samples = [make_rollout(0, n) for n in range(4)]
    (batch,) = pack([Group(samples[0].prompt, samples, [0.0] * 4, 0)], 256)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        tiny_policy.hidden(batch.ids_1T, batch.layout.positions_1T, batch.layout)
    layers = sum(count for op, count in counter.get_flop_counts()["Global"].items() if "mm" in str(op))
    assert flops.costs.token * work_of(samples).fed == pytest.approx(layers)
    assert flops.costs.head == 2 * tiny_policy.vocab * tiny_policy.hidden_size


def test_a_training_step_costs_all_its_passes(tiny_dir: Path, tiny_policy: Policy) -> None:
    samples = [make_rollout(g, n) for g in range(2) for n in range(4)]
    loss = {"kl_coef": 0.0}
    plain = TrainingFlops(tiny_policy, config(tiny_dir, loss=loss))
    more = TrainingFlops(tiny_policy, config(tiny_dir, optimizer_steps=2))
    work = work_of(samples)
    body = plain.costs.token * work.fed + plain.costs.pair * work.pairs
    assert plain.trained(samples) == pytest.approx(3 * body + 4 * plain.costs.head * work.drawn)
    assert more.trained(samples) == pytest.approx(5 * body + 6 * plain.costs.head * work.drawn)


@pytest.mark.parametrize("lora", [None, {"rank": 8, "alpha": 8}])
def test_flops_of_training_are_those_that_torch_counts_in_a_forward_and_a_backward_pass(
    tiny_dir: Path, lora: dict[str, int] | None
) -> None:
    """Of matrices that adapters leave frozen no gradient is computed. This head is small enough to be computed once."""
    run = config(tiny_dir, loss={"kl_coef": 0.0}, lora=lora)
    learner = build_learner(tiny_dir, run)
    flops, samples = TrainingFlops(learner.policy, run), [make_rollout(0, n) for n in range(4)]
    (batch,) = pack([Group(samples[0].prompt, samples, [0.0] * 4, 0)], 256)
    with FlopCounterMode(display=False) as counter:
        logp_A, entropy_A = learner.scorer(batch, 1.0)
        torch.autograd.backward(logp_A.sum() + entropy_A.sum())
    products = sum(count for op, count in counter.get_flop_counts()["Global"].items() if "mm" in str(op))
    work = work_of(samples)
    expected = flops.trained(samples) - flops.costs.head * work.drawn
    # The first block's matrices get no gradient of what they read, if nothing before them is trained: half of a pass
    # of one block in two.
    assert products == pytest.approx(expected, rel=0.12 if lora else 0.01)
    assert products < expected


@given(st.integers(1, 50), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_pairs_are_those_of_causal_attention(prompt: int, lengths: list[int]) -> None:
    own = sum(at + 1 for at in range(prompt))
    own += sum(prompt + at + 1 for length in lengths for at in range(length - 1))
    assert group_work(prompt, lengths) == Work(prompt + sum(lengths) - len(lengths), sum(lengths), own)


def entries() -> list[tuple[str, Entry]]:
    work = {"fed": 50, "drawn": 20, "pairs": 100}
    judged: Entry = {"event": "verdict", "step": 0, "generated": work}
    return [
        ("trainer", MODEL),
        ("origin", {"event": "sent", "bytes": 1000}),
        ("worker-0", {"event": "submission", "step": 0, "tokens": 200, "tokens_per_s": 100.0}),
        ("validator", {**judged, "checked": work, "file_bytes": 70, "cpu_s": 2.0}),
        ("validator", {**judged, "accept": False, "checked": {}, "file_bytes": 30}),
        ("trainer", {"event": "step", "step": 0, "train_flops": 2000.0, "train_s": 4.0}),
        ("relay", {"event": "sent", "bytes": 500}),
    ]


def test_parts_add_up_by_step_and_in_all_and_rejected_files_were_generated_too() -> None:
    ledger = ComputeLedger()
    for _, entry in entries():
        ledger.take(entry)
    one = 50 * 100.0 + 20 * 10.0 + 100
    total = ledger.total
    assert (total.train, total.generate, total.validate) == (2000.0, 2 * one, one)
    assert (total.broadcast, total.uploaded) == (1500, 100)
    assert total.ratio == pytest.approx(2 * one / 2000)
    assert total.rate("train") == 500.0
    assert total.rate("generate") == pytest.approx(one)
    assert (ledger.steps[0].broadcast, ledger.steps[1].broadcast) == (1000, 500)


ONE = 50 * 100.0 + 20 * 10.0 + 100
WORK = {"fed": 50, "drawn": 20, "pairs": 100}


def verdict(number: int, **more: object) -> Entry:
    return {"event": "verdict", "step": 0, "submission": number, "generated": WORK, "file_bytes": 10, **more}


def collected(*numbers: int) -> Entry:
    return {"event": "collected", "step": 0, "generated": {str(number): WORK for number in numbers}}


def taken(*told: Entry) -> ComputeLedger:
    ledger = ComputeLedger()
    for entry in (MODEL, *told):
        ledger.take(entry)
    return ledger


def test_a_file_is_counted_once_whoever_judged_it() -> None:
    """Two validators of the owner judged file 0, one file 1, which was rejected; only strangers judged file 2."""
    ledger = taken(verdict(0, checked=WORK), verdict(0, checked=WORK), verdict(1, accept=False), collected(0, 2))
    assert ledger.total.generate == 3 * ONE
    assert ledger.total.validate == 2 * ONE
    assert ledger.total.uploaded == 20


def test_a_step_that_is_made_again_has_its_files_once() -> None:
    assert taken(verdict(0), collected(0, 1), collected(0, 1)).total.generate == 2 * ONE


def test_a_file_that_could_not_be_read_here_is_counted_when_a_step_was_trained_on_it() -> None:
    assert taken(verdict(0, generated={}, accept=False), collected(0)).total.generate == ONE


def test_a_ledger_says_when_others_judge_files_too_and_only_then() -> None:
    assert not taken(verdict(0), verdict(1), collected(0)).is_partial
    assert not taken(collected(0), verdict(0)).is_partial
    assert taken(verdict(0), collected(0, 1)).is_partial


def test_what_is_forgotten_of_old_steps_keeps_a_ledger_partial_and_its_memory_bounded() -> None:
    ledger = taken(collected(0), *({**verdict(0), "step": step} for step in range(1, 2 * MEMORY)))
    assert ledger.is_partial
    assert len(ledger._files) == MEMORY


def test_figures_of_generation_are_lower_bounds_where_others_judge_files_too(tmp_path: Path) -> None:
    others: Entry = {"event": "collected", "step": 0, "generated": {"7": WORK}}
    for number, (role, entry) in enumerate([*entries(), ("trainer", others)]):
        append(tmp_path / "metrics" / f"{role}.jsonl", {"time": float(number + 1), **entry})
    history = History(tmp_path)
    history.refresh()
    assert dict(panels.latest(history))["generate : train"] == "at least 7.95 FLOP per FLOP"
    said = dict(panels.computed(history))
    assert said["generation"].startswith("at least 1.59e+04 FLOP, 7.95 x training")
    assert not said["validation"].startswith("at least")


def test_what_strangers_or_older_releases_write_costs_nothing() -> None:
    costs = Costs.of(MODEL)
    assert costs is not None
    strange: list[object] = [None, "x", [], {"fed": "many"}, {"fed": float("nan")}]
    for work in strange:
        assert costs.flops(work) == 0.0
    assert Costs.of({"event": "model", "token_flops": None}) is None
    ledger = ComputeLedger()
    ledger.take({"event": "verdict", "step": 0, "generated": {"fed": 5}})
    assert ledger.total.generate == 0.0
    assert ledger.total.ratio is None


def test_status_page_and_sinks_show_the_ledger(tmp_path: Path) -> None:
    for number, (role, entry) in enumerate(entries()):
        append(tmp_path / "metrics" / f"{role}.jsonl", {"time": float(number + 1), **entry})
    put_status(tmp_path, "trainer", state="done", alive=False)
    console = Console(file=io.StringIO(), width=200)
    print_status(tmp_path, console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "generation  1.06e+04 FLOP, 5.30 x training, 5.3e-06 GFLOP/s while at it (40% of the time)" in said
    assert "broadcast  1.5 kB sent, 1.5 kB per step" in said
    history = History(tmp_path)
    (row,) = Rows().take(history.refresh())
    assert row.values["compute/generate_flops"] == pytest.approx(10600)
    assert row.values["compute/broadcast_bytes"] == 1000
    assert row.values["train/train_flops"] == 2000
    assert dict(panels.latest(history))["generate : train"] == "5.30 FLOP per FLOP"


def test_the_share_of_the_time_at_work_is_that_of_one_role_on_average(tmp_path: Path) -> None:
    """From the first entry at 1 s to the step at 6 s: training 4 s, two workers 2 s and 1 s, a validator 2 s."""
    second: Entry = {"event": "submission", "step": 0, "tokens": 50, "tokens_per_s": 50.0}
    for number, (role, entry) in enumerate([*entries(), ("worker-1", second)]):
        append(tmp_path / "metrics" / f"{role}.jsonl", {"time": float(number + 1), **entry})
    history = History(tmp_path)
    history.refresh()
    said = dict(panels.computed(history))
    assert said["training"].endswith("(80% of the time)")
    assert said["generation"].endswith("(30% of the time)")
    assert said["validation"].endswith("(40% of the time)")
