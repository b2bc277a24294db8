"""A real vLLM server on this CPU: requests, answers, reloads and refusals, through its API and nothing else.

Its V1 sampler is not the one that `vllm-0.32` names, which needs a GPU: seeded runs refuse it, and free ones use it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch

from shoal.config import RunConfig
from shoal.config_io import check_config
from shoal.errors import ModelError
from shoal.generate.engine import Request
from shoal.generate.server.engine import ServerEngine
from shoal.models.load import load, outline
from shoal.models.tiny import build_tiny
from shoal.models.weights import write_weights
from shoal.process import tree_of
from shoal.protocol.rollout import bare_rollout
from shoal.tasks.build import build_source
from shoal.validate.recompute import logprobs
from tests.support.servers.running import free_port

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm has it")
pytestmark = pytest.mark.xdist_group("server")

START_S = 1000
TREE: dict[str, Any] = {
    "name": "server",
    "steps": 1,
    "tasks": [{"source": "reasoning-gym/spell_backward"}],
    "model": {"tiny": {"hidden": 128, "layers": 2, "warm_steps": 0}},
    "sampling": {"mode": "free", "temperature": 0.7, "group_size": 4, "max_new_tokens": 12, "max_prompt_tokens": 24},
    "audit": {"proofs": False},
    "workers": {"engine": "vllm-server", "server": "http://127.0.0.1:1", "max_batch": 8},
}
FLAGS = "--dtype float32 --enforce-eager --no-enable-chunked-prefill --max-model-len 128 --max-num-batched-tokens 2048"


def config_with(server: str = TREE["workers"]["server"], **sampling: Any) -> RunConfig:
    workers = {**TREE["workers"], "server": server}
    return check_config({**TREE, "workers": workers, "sampling": {**TREE["sampling"], **sampling}}, "test")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, config = tmp_path_factory.mktemp("model"), config_with()
    build_tiny(folder, config.model.tiny, build_source(config.tasks), 0, lambda *_: None)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()  # picked late: until the server has it, anybody may take it
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *FLAGS.split()]
    command += ["--logprobs-mode", "processed_logprobs", "--host", "127.0.0.1", "--port", str(port)]
    settings = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("wb") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **settings})
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert running.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                if httpx2.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200:
                    break
            except httpx2.TransportError:
                time.sleep(1)
        yield url
    finally:
        running.terminate()
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            for process in tree_of(running.pid):  # its engine core would outlive it
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            running.wait()


def test_answers_of_a_stock_server_have_the_log_probs_of_the_model_at_the_runs_temperature(
    server: str, model: Path
) -> None:
    config = config_with(server)
    engine = ServerEngine(config, outline(model))
    engine.load(model, "version 0")
    prompts = [(5, 9, 17, 33), (8, 8, 40), (61, 7, 12, 3, 9, 11)]
    requests = [Request(prompts[n % 3], 1, n, 12) for n in range(12)]
    made = sorted(engine.generate(requests), key=lambda answer: answer.key)
    policy = load(model)
    assert len(made) == 12
    for answer in made:
        assert answer.proof == b""
        assert (answer.tokens[-1] in policy.eos_ids) == (answer.finish == "eos")
    samples = [bare_rollout(r.prompt, a.tokens, a.logprobs, a.finish) for r, a in zip(requests, made, strict=True)]
    ours = logprobs(policy, samples, 0.7, 4096)
    gap = max(float(np.abs(own - sample.logprobs).max()) for own, sample in zip(ours, samples, strict=True))
    assert gap < config.audit.thresholds.logprob
    engine.close()


def test_a_seeded_run_refuses_a_server_whose_sampler_is_another(server: str, model: Path) -> None:
    with pytest.raises(ModelError, match=r"are not those that vllm-0\.32 draws"):
        ServerEngine(config_with(server, mode="seeded", noise="vllm-0.32"), outline(model))
    with pytest.raises(ModelError, match="which no server draws"):
        ServerEngine(config_with(server, mode="seeded"), outline(model))


def test_a_new_version_is_loaded_or_refused_and_never_half_of_it(server: str, model: Path, tmp_path: Path) -> None:
    """On a CPU, vLLM 0.32 keeps a packed copy of a head that is tied to the embeddings: its reload is found out."""
    for file in model.iterdir():
        if file.suffix != ".safetensors" and file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    generator = torch.Generator().manual_seed(1)
    other = {name: w + 0.05 * torch.randn(w.shape, generator=generator) for name, w in load(model).weights().items()}
    write_weights(tmp_path, other)
    engine = ServerEngine(config_with(server), outline(model))
    with pytest.raises(ModelError, match=r"from those of version 1, allowed .*it holds other weights"):
        engine.load(tmp_path, "version 1")
    engine.close()
