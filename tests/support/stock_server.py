"""The API of a vLLM server with a GPU, which is not here: the same requests and answers, sampling by vLLM's noise.

The noise is `noise_kinds`, which tests/vllm compares with vLLM's own kernel; the API is that of the real server, which
tests/vllm starts on the CPU. What cannot be run without a GPU is the two of them together.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch

from shoal.generate.noise_kinds import VllmNoise
from shoal.generate.sampling import choose
from shoal.generate.server.engine import probe_logprobs
from shoal.models.attention import Packed
from shoal.models.load import Policy
from shoal.models.weights import read_weights
from tests.support.servers.http_answers import answering


@dataclass(slots=True)
class StockServer:
    """What it serves, and how it may differ from what a run needs."""

    policy: Policy
    version: str = "0.32.0"
    processed_logprobs: bool = True
    position_off: int = 0
    """Added to the position of every draw: another sampler."""
    stale: bool = False
    """It answers a reload and keeps its weights."""
    holds_cache: int = 0
    """So many times it does not empty its prefix cache, because requests run or blocks are being moved."""
    hangs: bool = False
    """It takes requests for answers, and never answers."""
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        match path:
            case "/version":
                return {"version": self.version}
            case "/v1/models":
                return {"data": [{"id": "served", "max_model_len": 4096}]}
            case "/collective_rpc":
                if not self.stale:
                    folder = Path(body["kwargs"]["weights_path"])
                    self.policy.set_weights(read_weights(folder, "float32"), str(folder))
                return {"results": [None]}
            case "/reset_prefix_cache?reset_running_requests=true":
                self.holds_cache -= 1
                return {"success": self.holds_cache < 0}
            case "/v1/completions":
                self.asked.append(body)
                if self.hangs:
                    Event().wait()
                return self.completion(body)
        return {}

    @torch.inference_mode()
    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        if "prompt_logprobs" in body:
            found = probe_logprobs(self.policy, prompt)
            rows = [{str(token): {"logprob": value}} for token, value in zip(prompt[1:], found, strict=True)]
            return {"choices": [{"prompt_logprobs": [None, *rows]}]}
        seed = body.get("seed", np.random.default_rng().integers(2**62))
        noise = VllmNoise(int(seed), self.policy.vocab, len(prompt) - 1 + self.position_off)
        tokens: list[int] = []
        logprobs, top = [], []
        while len(tokens) < body["max_tokens"] and (not tokens or tokens[-1] not in body["stop_token_ids"]):
            logits_1V = self._logits(prompt + tokens)
            scaled_1V = logits_1V / body["temperature"]
            token = int(choose(scaled_1V, [noise.next()])[0])
            logp_V = torch.log_softmax(scaled_1V if self.processed_logprobs else logits_1V, dim=1)[0]
            best = {*logp_V.topk(min(body["logprobs"], self.policy.vocab)).indices.tolist(), token}
            tokens.append(token)
            logprobs.append(float(logp_V[token]))
            top.append({f"token_id:{one}": float(logp_V[one]) for one in best})
        said = {"token_logprobs": logprobs, "top_logprobs": top}
        return {"choices": [{"token_ids": tokens, "logprobs": said, "finish_reason": "stop"}]}

    def _logits(self, ids: list[int]) -> torch.Tensor:
        layout = Packed([len(ids)])
        hidden_TD = self.policy.hidden(torch.tensor([ids]), layout.positions_1T, layout)[0]
        return self.policy.head(hidden_TD[-1:]).float()


@contextmanager
def serving(server: StockServer) -> Iterator[str]:
    """The server at work; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._give({})

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._give(json.loads(data) if data else {})

        def _give(self, body: dict[str, Any]) -> None:
            said = json.dumps(server.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None: ...

    with answering(Handler) as url:
        yield url
