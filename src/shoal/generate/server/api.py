"""HTTP client of a stock vLLM server: completions by token ids, and the requests that swap its weights.

Every sampling setting is sent, because a server takes what a request leaves out from the model's generation config.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2

from shoal.errors import ModelError
from shoal.text import one_line
from shoal.wait import Wait

# A long answer takes minutes; a server that is gone is noticed when its connection closes.
ANSWER_S = 3600.0
CONNECT_S = 10.0
# A prefix cache is emptied at once, but for blocks that are being moved.
EMPTY_S = 30.0
# What a server may be asked for at most, without --max-logprobs.
TOP = 20
_TOKEN = re.compile(r"token_id:(\d+)")
Finish = Literal["eos", "length"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion as the server gave it."""

    tokens: list[int]
    logprobs: list[float]
    finish: Finish
    top: list[dict[int, float]]
    """Log-probs of the likeliest tokens of each position, if they were asked for."""


class ServerApi:
    """The server at a URL. Any failure is a ModelError that names the URL and what was asked."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        limits = httpx2.Limits(max_connections=None)
        timeout = httpx2.Timeout(ANSWER_S, connect=CONNECT_S)
        self._client = httpx2.Client(timeout=timeout, limits=limits, trust_env=False, follow_redirects=False)
        self.model = ""

    def close(self) -> None:
        self._client.close()

    def version(self) -> str:
        """The release of vLLM, as in 0.32.0."""
        return str(self._ask("GET", "/version").get("version", ""))

    def open(self, max_len: int) -> None:
        """Finds the served model, which must take sequences of this length."""
        listed = self._ask("GET", "/v1/models").get("data") or []
        if not listed:
            raise ModelError(f"workers.server {self.url}: serves no model; start it with one")
        longest = listed[0].get("max_model_len")
        if longest is not None and longest < max_len:
            raise ModelError(
                f"workers.server {self.url}: takes {longest} tokens, this run's sequences have up to {max_len}; "
                f"start it with --max-model-len {max_len}"
            )
        self.model = str(listed[0]["id"])

    def complete(
        self,
        prompt: Sequence[int],
        new: int,
        temperature: float,
        ends: Sequence[int],
        seed: int | None,
        top: int = 0,
    ) -> Answer:
        """One answer, up to the first of the end tokens."""
        asked: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": new,
            "temperature": temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "n": 1,
            "logprobs": top,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "add_special_tokens": False,
            # The run says which tokens end an answer; the model's own config may say otherwise.
            "ignore_eos": True,
            "stop_token_ids": list(ends),
        }
        if seed is not None:
            asked["seed"] = seed
        return self._parsed(self._ask("POST", "/v1/completions", asked), ends, new)

    def prompt_logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Log-probs of all tokens but the first at temperature 1, as the server computes them."""
        asked = {
            "model": self.model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
            "add_special_tokens": False,
        }
        told = self._ask("POST", "/v1/completions", asked)
        rows = (told.get("choices") or [{}])[0].get("prompt_logprobs") or []
        try:
            return [float(row[str(token)]["logprob"]) for token, row in zip(tokens[1:], rows[1:], strict=True)]
        except (KeyError, TypeError, ValueError):
            raise ModelError(f"workers.server {self.url}: gives no log-probs of a prompt; is it vLLM?") from None

    def reload(self, folder: Path) -> None:
        """Makes the server read a version's files; it must see this machine's disk. Keys and values of the version
        before go with it: those of requests that somebody else has running are computed again."""
        try:
            self._ask("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            emptied = self._empty_cache()
        except ModelError as error:
            raise ModelError(
                f"{error}; new versions are loaded through its development API: start it with VLLM_SERVER_DEV_MODE=1, "
                "on this machine, and let nobody else reach its port"
            ) from error
        if not emptied:
            raise ModelError(
                f"workers.server {self.url}: does not empty its prefix cache, whose keys and values are those of the "
                "version before; start it again, and let nobody else use it"
            )

    def _empty_cache(self) -> bool:
        """Whether it has emptied its prefix cache: vLLM says success = false while blocks are in use."""
        wait = Wait(EMPTY_S, pause_s=0.5)
        while self._ask("POST", "/reset_prefix_cache?reset_running_requests=true").get("success") is False:
            if not wait.pause():
                return False
        return True

    def _parsed(self, told: dict[str, Any], ends: Sequence[int], new: int) -> Answer:
        try:
            (choice,) = told["choices"]
            tokens = [int(token) for token in choice["token_ids"]]
            logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
            rows = choice["logprobs"].get("top_logprobs") or []
            top = [{_token(name): float(value) for name, value in (row or {}).items()} for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"workers.server {self.url}: its completion lacks token ids or log-probs ({error!r:.80}); vLLM 0.32 "
                "gives both"
            ) from None
        if not tokens or len(logprobs) != len(tokens):
            raise ModelError(f"workers.server {self.url}: {len(logprobs)} log-probs for {len(tokens)} tokens")
        ended = tokens[-1] in ends
        if not ended and len(tokens) != new:
            raise ModelError(
                f"workers.server {self.url}: stopped after {len(tokens)} of {new} tokens without an end token "
                f"({choice.get('finish_reason')}); start it without stop strings of its own"
            )
        return Answer(tokens, logprobs, "eos" if ended else "length", top)

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        try:
            answer = self._client.request(method, self.url + path, json=body)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise ModelError(
                f"workers.server {self.url}: does not answer {path} ({one_line(str(error)):.200}); is it running?"
            ) from None
        if answer.status_code != 200:
            raise ModelError(
                f"workers.server {self.url}: answered {path} with {answer.status_code} ({one_line(answer.text):.300})"
            )
        if not answer.content:
            return {}
        try:
            told = answer.json()
        except ValueError:
            raise ModelError(f"workers.server {self.url}: its answer to {path} is not valid JSON") from None
        return told if isinstance(told, dict) else {}


def _token(name: str) -> int:
    found = _TOKEN.fullmatch(name)
    if found is None:
        raise ValueError(f"token {name!r:.40} without its id")
    return int(found[1])
