"""vLLM behind our engine's interface. A completion depends on weights, prompt, seed and sample alone, as with ours.

That is why an engine that dies is started again with the version it had, and given what was running: the same answers
come out. It must get on in between, or the error is raised. One that does not answer is killed, which is a death, too.
"""

# vLLM is an extra that type checks and most machines do not have.
# mypy: disable-error-code="import-not-found,import-untyped,no-any-unimported"

import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from shoal.errors import ModelError
from shoal.generate.decoding import Decoding
from shoal.generate.engine import Completion, Engine, Request, check_request
from shoal.generate.vllm.asked import Asked
from shoal.generate.vllm.death_watch import DeathWatch, watch_for_death
from shoal.generate.vllm.start import VllmSettings, reason, start
from shoal.models.adapter_files import is_adapter
from shoal.models.load import Policy, check_names
from shoal.models.merge import shapes_of
from shoal.models.weights import read_weights, write_weights

Reader = Callable[[Path], Mapping[str, Tensor]]
# Deaths without a completion in between, after which starting again is given up.
MAX_DEATHS = 3
# What an engine that works is given to answer, on the slowest machine: one forward pass, a call that computes nothing,
# and on top of that bytes of a version per second from its disk into place and through the comparison.
STEP_S, CALL_S, LOAD_BYTES_PER_S = 600.0, 300.0, 20e6
# How an answer ends, by what vLLM calls it.
FINISHES: Mapping[str, Literal["eos", "length"]] = {"stop": "eos", "length": "length"}
Say = Callable[[str], None]


@dataclass(slots=True)
class _Submitted:
    key: int
    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """What there is so far, if it is streamed."""


class VllmEngine(Engine):
    """Generates with vLLM in processes of its own.

    `outline` is the policy without its numbers: what ends answers, and what a version must consist of. `reader` turns a
    version's directory into weights where it is an adapter; `say` hears of restarts.
    """

    def __init__(
        self, folder: Path, outline: Policy, settings: VllmSettings, *, origin: str, reader: Reader, say: Say
    ) -> None:
        if settings.max_len > outline.max_positions:
            raise ModelError(
                f"prompt and answer may take {settings.max_len} tokens, the model handles {outline.max_positions}; "
                "lower max_prompt_tokens or max_new_tokens"
            )
        self._outline = outline
        self._settings = settings
        self.temperature = settings.temperature
        self._reader = reader
        self._say = say
        self._scratch = Path(tempfile.mkdtemp(prefix="shoal-vllm-"))
        self._numbers = itertools.count()
        self._submitted: dict[int, _Submitted] = {}
        self._deaths = 0
        self._printed = 0
        self._loaded: tuple[Path, str] | None = None
        self._engine: Any = None
        self._watch: DeathWatch
        try:
            self._start(folder, origin)
        except BaseException:
            self._stop()  # what it printed stays: the error names it
            raise

    @property
    def log(self) -> Path:
        """What vLLM and its processes print."""
        return self._scratch / "vllm.log"

    @property
    def running(self) -> int:
        return len(self._submitted)

    def load(self, folder: Path, origin: str) -> None:
        if self._submitted:
            raise ModelError(f"{origin}: {len(self._submitted)} requests are running; a version is loaded when none is")
        folder = self._whole(folder)
        self._check_shapes(folder, origin)
        self._loaded = None
        if self._engine is None:
            self._start(folder, origin)
            return
        try:
            with self._watch.within(CALL_S, "it emptied its prefix cache"):
                is_empty = self._engine.reset_prefix_cache()
            if not is_empty:
                # Keys and values of the version before would go into answers of this one.
                self._say(f"vLLM did not empty its prefix cache for {origin}; it is started again")
                self._stop()
                self._start(folder, origin)
                return
            self._all_ranks("shoal_load", folder, origin)
        except _DEAD() as error:
            self._start_again(str(error), folder, origin)
            return
        self._loaded = folder, origin

    def submit(self, key: int, request: Request, *, hidden: bool = False) -> None:
        check_request(key, request, self._settings.max_len)
        if hidden:
            raise ModelError('vLLM hands out no hidden states, only proofs of them; use workers.engine = "torch"')
        if self._loaded is None:
            raise ModelError(f"request {key}: vLLM has no version loaded, because the last one could not be")
        number = next(self._numbers)
        self._submitted[number] = _Submitted(key, request)
        try:
            self._add(number, request)
        except _DEAD() as error:
            self._recover(str(error))

    def step(self) -> list[Completion]:
        if not self._submitted:
            return []
        try:
            with self._watch.within(STEP_S, "it computed a step"):
                made = self._engine.step()
            outputs = [(int(output.request_id), output) for output in made]
            known = [(number, output) for number, output in outputs if number in self._submitted]
            for number, output in known:
                self._note(self._submitted[number], output.outputs[0])
            ended = [(number, output.outputs[0]) for number, output in known if output.finished]
            proofs = self._proofs([(number, len(answer.token_ids)) for number, answer in ended])
        except _DEAD() as error:
            self._recover(str(error))
            return []
        if ended:
            self._deaths = 0
        return [self._completion(number, answer, proof) for (number, answer), proof in zip(ended, proofs, strict=True)]

    def so_far(self) -> Iterator[tuple[int, Sequence[int], Sequence[float]]]:
        running = self._submitted.values()
        return ((own.key, own.tokens, own.logprobs) for own in running if own.request.streamed)

    def _note(self, submitted: _Submitted, answer: Any) -> None:
        """Keeps what a streamed request has so far; one that was started again comes to the same tokens."""
        if submitted.request.streamed and len(answer.token_ids) > len(submitted.tokens):
            submitted.tokens = list(answer.token_ids)
            submitted.logprobs = [float(logp) for logp in answer.logprobs.logprobs]

    def drop(self, key: int) -> None:
        self._forget([number for number, submitted in self._submitted.items() if submitted.key == key])

    def abort(self) -> None:
        self._forget(list(self._submitted))

    def _forget(self, numbers: list[int]) -> None:
        for number in numbers:
            del self._submitted[number]
        if not numbers or self._engine is None:
            return
        try:
            with self._watch.within(CALL_S, "requests were taken back"):
                self._engine.abort_request([str(number) for number in numbers])
            self._call("shoal_drop", numbers)
        except _DEAD() as error:
            self._recover(str(error))

    def close(self) -> None:
        self._stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def counts(self) -> tuple[int, int]:
        """The most states that a proof has held, and how often preempted requests came back."""
        most, resumed = self._call("shoal_counts")[0]
        return int(most), int(resumed)

    def graphs(self) -> tuple[bool, str]:
        """Whether vLLM runs eagerly, and the mode of its CUDA graphs, as its first rank has them after it started."""
        eager, mode = self._call("shoal_graphs")[0]
        return bool(eager), str(mode)

    def runner(self) -> int:
        """Which of vLLM's two model runners computes."""
        return int(self._call("shoal_runner")[0])

    def _start(self, folder: Path, origin: str) -> None:
        self._engine = start(folder, self._settings, self.log, origin)
        self._printed = self.log.stat().st_size
        self._watch = watch_for_death(self._engine.engine_core)
        self._call("shoal_prepare", os.getpid())
        self._all_ranks("shoal_check", folder, origin)
        self._loaded = folder, origin

    def _stop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.engine_core.shutdown()
            self._watch.end()

    def _died(self, said: str) -> None:
        """Gives up on an engine that dies again and again; why is in what it printed, if it had time for that."""
        self._stop()
        self._deaths += 1
        printed = self.log.read_bytes()[self._printed :].decode(errors="replace")
        why = self._watch.late or reason(printed) or said or "without a word"
        self._watch.late = ""
        if self._deaths > MAX_DEATHS:
            raise ModelError(
                f"vLLM died {self._deaths} times without an answer in between: {why} ({self.log}); "
                'if it does so again, set workers.engine = "torch"'
            )
        self._say(f"vLLM died ({why}); it is started again, with what was running")

    def _recover(self, said: str) -> None:
        assert self._loaded is not None
        self._start_again(said, *self._loaded)

    def _start_again(self, said: str, folder: Path, origin: str) -> None:
        """Starts an engine that died, and gives it what was running; one that dies at that is started again, too."""
        self._loaded = None
        while True:
            self._died(said)
            try:
                self._start(folder, origin)
                for number, submitted in self._submitted.items():
                    self._add(number, submitted.request)
            except _DEAD() as error:
                said = str(error)
            else:
                return

    def _add(self, number: int, request: Request) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings = self._settings
        how = request.decoding or Decoding(self.temperature)
        asked = Asked(
            number, request.seed, request.sample, how.temperature, settings.proofs, request.position, how.top_p
        )
        params = SamplingParams(
            temperature=0.0 if settings.noise else how.temperature,
            max_tokens=request.max_new_tokens,
            stop_token_ids=sorted(self._outline.eos_ids),
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE if request.streamed else RequestOutputKind.FINAL_ONLY,
            extra_args=asked.extra_args if settings.noise else None,
        )
        with self._watch.within(CALL_S, "it was given a request"):  # it is asked what it can do first
            self._engine.add_request(str(number), {"prompt_token_ids": list(request.prompt)}, params)

    def _proofs(self, ended: Sequence[tuple[int, int]]) -> list[bytes]:
        if not ended or not (self._settings.proofs and self._settings.noise):
            return [b""] * len(ended)
        found = self._call("shoal_take", list(ended))[0]
        if isinstance(found, str):
            raise ModelError(found)
        return [bytes(proof) for proof in found]

    def _completion(self, number: int, answer: Any, proof: bytes) -> Completion:
        if answer.finish_reason not in FINISHES:  # such as "abort": there is less of it than was asked for
            raise ModelError(
                f"vLLM ended an answer after {len(answer.token_ids)} tokens by itself ({answer.finish_reason}), and "
                "nothing is handed in"
            )
        finish = FINISHES[answer.finish_reason]
        logprobs = [float(logp) for logp in answer.logprobs.logprobs]
        if not math.isfinite(sum(logprobs)):  # on a GPU nobody waits for logits to look at them
            raise ModelError("log-probs of vLLM are not finite: the weights have diverged, and nothing is handed in")
        return Completion(self._submitted.pop(number).key, list(answer.token_ids), logprobs, finish, proof)

    def _all_ranks(self, method: str, folder: Path, origin: str) -> None:
        """Calls a method of ours about a version in every rank; what any of them says is wrong is raised."""
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        seconds = CALL_S + size / LOAD_BYTES_PER_S
        for said in self._call(method, str(folder), self._settings.held, origin, seconds=seconds):
            if said:
                raise ModelError(said)

    def _call(self, method: str, *args: Any, seconds: float | None = None) -> list[Any]:
        """What each rank answers; the engine is killed if one does not in time."""
        with self._watch.within(CALL_S if seconds is None else seconds, f"it was asked for {method}"):
            found: list[Any] = self._engine.collective_rpc(method, args=args)
        return found

    def _whole(self, folder: Path) -> Path:
        """A directory with all weights of a version: its own, or that of an adapter merged to the bit."""
        if not is_adapter(folder):
            return folder
        merged = self._scratch / "merged"
        weights = self._reader(folder)
        shutil.rmtree(merged, ignore_errors=True)
        merged.mkdir()
        self._outline.model.config.save_pretrained(merged)
        write_weights(merged, weights)
        return merged

    def _check_shapes(self, folder: Path, origin: str) -> None:
        """Before anything of a version is loaded."""
        own = {name: tensor.shape for name, tensor in self._outline.weights().items()}
        check_names(own, shapes_of(read_weights(folder, self._settings.held)), origin)


def _DEAD() -> type[Exception]:
    """The error of an engine whose processes are gone; vLLM is imported when it is used."""
    from vllm.v1.engine.exceptions import EngineDeadError

    found: type[Exception] = EngineDeadError
    return found
