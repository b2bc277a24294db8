"""A run with two versions of a random model that has a chat template, and its server in threads of this process."""

import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoTokenizer

from shoal.coordinator.http.server import bind, url_of, uvicorn_server
from shoal.models.load import load
from shoal.models.weights import write_weights
from shoal.roles.model_server import ServeOptions, desk_of
from shoal.rundir import RunDir
from shoal.serve.app import Serving, make_app
from tests.support.architectures import save_random
from tests.support.roles_in_process import make_config, make_run

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' and loop.first %}{{ raise_exception('a user begins') }}"
    "{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
POSITIONS = 1024
END_S = 10.0
# No test claims what happens to a client that says nothing: a client without a core must not be taken for one.
PAUSE_S = 30.0


def chat_run(path: Path, *, template: bool = True) -> RunDir:
    """Versions 0 and 1."""
    model = save_random(path / "model", "llama", max_position_embeddings=POSITIONS)
    if template:
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(model)
    run = make_run(path / "run", make_config(model))
    publish(run, 1)
    return run


def publish(run: RunDir, number: int) -> None:
    """Another version: every weight is off a little."""
    generator = torch.Generator().manual_seed(number)
    weights = load(run.base_model).weights()
    with run.channel().publish(number) as staging:
        write_weights(staging, {n: w + 0.05 * torch.randn(w.shape, generator=generator) for n, w in weights.items()})


@dataclass(slots=True)
class Served:
    """A server at work."""

    url: str
    run: RunDir
    serving: Serving

    @property
    def idle(self) -> bool:
        return self.serving.desk.load == (0, 0)

    def wait_until_idle(self, within_s: float = 60.0) -> None:
        until = time.monotonic() + within_s
        while not self.idle:
            assert time.monotonic() < until, f"still at work: {self.serving.desk.load}"
            time.sleep(0.01)


@contextmanager
def serving_model(
    run: RunDir, options: ServeOptions | None = None, *, public: bool = False, api_key: str | None = None
) -> Iterator[Served]:
    options = options or ServeOptions(engine="torch", batch=8, queue=64)
    with (
        desk_of(run, options, Console(file=io.StringIO())) as (desk, versions, prompts),
        ThreadPoolExecutor(1) as tokenizing,
    ):
        serving = Serving(desk, versions, prompts, tokenizing)
        listener = bind("127.0.0.1", 0)
        server = uvicorn_server(make_app(serving, public=public, api_key=api_key), 256, PAUSE_S)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Served(url_of(listener), run, serving)
        finally:
            server.should_exit = True
            thread.join(END_S)
            listener.close()
