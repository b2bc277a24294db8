"""A stock server as worker: its files pass a judge, and a server that would get its operator banned is refused."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from shoal.cli.lend import as_own_machine, machine
from shoal.config import RunConfig
from shoal.config_io import check_config, to_toml
from shoal.errors import ConfigError, ModelError
from shoal.generate.server.engine import ServerEngine
from shoal.generate.server.probes import check_reloaded
from shoal.generate.submission_builder import Maker
from shoal.models.load import load, outline
from shoal.models.weights import write_weights
from shoal.rundir import RunDir
from shoal.tasks.source import InProcess
from shoal.validate.checks.all_checks import Checks
from shoal.wait import wait_until
from tests.support.model_and_checks import VERSIONS, World, build_world, gym, lease_of, model_dir, weights
from tests.support.stock_server import StockServer, serving

STOCK: dict[str, Any] = {"noise": "vllm-0.32", "temperature": 0.8, "max_new_tokens": 8, "group_size": 3}


def without_proofs(world: World, url: str = "") -> World:
    """The same world in a run that asks for no proofs, with a server or without."""
    tree = world.config.model_dump(mode="json")
    tree["audit"]["proofs"] = False
    tree["workers"] |= {"server": url, "engine": "vllm-server" if url else "auto"}
    config = check_config(tree, "test")
    roots = {version.number: version.root for version in VERSIONS}
    checks = Checks(config, world.checks.policy, gym(), InProcess(gym()), roots.get)
    return replace(world, config=config, checks=checks)


@pytest.fixture(scope="module")
def world() -> World:
    return without_proofs(build_world("short", **STOCK))


@pytest.fixture(scope="module")
def version_1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version that the judges of the world have loaded, as a directory."""
    folder = tmp_path_factory.mktemp("versions") / "v1"
    folder.mkdir()
    for file in model_dir("short").iterdir():
        if file.suffix != ".safetensors" and file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    write_weights(folder, weights("short")[1])
    return folder


def server(**differs: Any) -> StockServer:
    return StockServer(load(model_dir("short")), **differs)


@pytest.fixture
def stock() -> Iterator[tuple[StockServer, str]]:
    served = server()
    with serving(served) as url:
        yield served, url


def engine_at(config: RunConfig) -> ServerEngine:
    return ServerEngine(config, outline(model_dir("short")))


def test_files_of_a_stock_server_pass_a_judge_token_by_token(
    world: World, version_1: Path, stock: tuple[StockServer, str]
) -> None:
    served, url = stock
    config = without_proofs(world, url).config
    engine = engine_at(config)
    engine.load(version_1, "version 1")
    maker = Maker(config, outline(model_dir("short")), engine, gym(), InProcess(gym()))
    lease = lease_of(world)
    submission, data = maker.file(lease, VERSIONS[1])
    assert world.verdict(data, lease) is None
    assert {sample.proof for sample in submission.rollouts} == {b""}
    seeds = [asked["seed"] for asked in served.asked if asked.get("max_tokens") == 8]
    assert len(set(seeds)) == len(submission.rollouts), "one seed per sample"
    edited = [replace(submission.rollouts[0], completion=submission.rollouts[0].completion.copy())]
    edited[0].completion[0] = (int(edited[0].completion[0]) + 1) % 200
    changed = replace(submission, rollouts=[*edited, *submission.rollouts[1:]])
    finding = world.verdict_on(changed)
    assert finding is not None, "tokens are held to the lease's noise without proofs, too"
    engine.close()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another release": ({"version": "0.33.1"}, "is vLLM 0.33.1, and sampling.noise = 'vllm-0.32' is that of"),
    "another sampler": ({"position_off": 1}, "are not those that vllm-0.32 draws"),
    "log-probs of temperature 1": ({"processed_logprobs": False}, "--logprobs-mode processed_logprobs"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_server_that_would_get_its_operator_banned_is_refused_before_a_lease_is_taken(world: World, why: str) -> None:
    differs, said = REFUSED[why]
    with serving(server(**differs)) as url, pytest.raises(ModelError, match=r"workers\.server") as refused:
        engine_at(without_proofs(world, url).config)
    assert said in str(refused.value)


def test_a_server_that_keeps_old_weights_is_refused_by_the_worker_itself(world: World, version_1: Path) -> None:
    with serving(server(stale=True)) as url:
        engine = engine_at(without_proofs(world, url).config)
        with pytest.raises(ModelError, match=r"off by .* of version 1.*holds other weights.* TRITON_F32_DEFAULT=ieee"):
            engine.load(version_1, "version 1")


@pytest.mark.parametrize(("times", "seconds"), [(2, 60.0), (2, 0.0)], ids=["for a moment", "for ever"])
def test_nothing_is_generated_with_keys_and_values_of_the_version_before(
    world: World, version_1: Path, times: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes do not read the cache: weights that are right would hide it."""
    monkeypatch.setattr("shoal.generate.server.api.EMPTY_S", seconds)
    served = server(holds_cache=times)
    with serving(served) as url:
        engine = engine_at(without_proofs(world, url).config)
        if seconds:
            engine.load(version_1, "version 1")
            assert served.holds_cache == -1, "it was asked until it had"
        else:
            with pytest.raises(ModelError, match=rf"workers\.server {url}: does not empty its prefix cache"):
                engine.load(version_1, "version 1")
        engine.close()


@pytest.mark.parametrize("why", REFUSED)
def test_a_server_that_is_started_again_in_another_way_is_refused_with_the_next_version(
    world: World, version_1: Path, why: str
) -> None:
    differs, said = REFUSED[why]
    served = server()
    with serving(served) as url:
        engine = engine_at(without_proofs(world, url).config)
        engine.load(version_1, "version 1")
        for name, value in differs.items():
            setattr(served, name, value)
        with pytest.raises(ModelError, match=r"workers\.server") as refused:
            engine.load(version_1, "version 2")
        engine.close()
    assert said in str(refused.value)


def test_a_reload_without_effect_is_noticed_also_where_rounding_would_hide_it() -> None:
    check_reloaded(([-1.0], [-1.1]), ([-1.0], [-1.1]), "version 2", "http://a")
    check_reloaded(([-1.0], [-1.1]), ([-1.2], [-1.3]), "version 2", "http://a")
    with pytest.raises(ModelError, match="its reload has no effect"):
        check_reloaded(([-1.0], [-1.1]), ([-1.0], [-1.3]), "version 2", "http://a")


INTERRUPTED = """
import sys
from contextlib import closing, suppress
from pathlib import Path

from shoal.config_io import load_config
from shoal.generate.engine import Request
from shoal.generate.server.engine import ServerEngine
from shoal.models.load import outline

engine = ServerEngine(load_config(Path(sys.argv[1])), outline(Path(sys.argv[2])))
with suppress(KeyboardInterrupt), closing(engine):
    print("ready", flush=True)
    sys.stdin.readline()
    for key in range(3):
        engine.submit(key, Request((1, 2, 3), 5, key, 4))
    while True:
        engine.step()
"""


def test_a_worker_that_is_interrupted_does_not_wait_for_a_server_that_hangs(world: World, tmp_path: Path) -> None:
    """The interpreter waits for its threads before it ends."""
    served = server()
    with serving(served) as url:
        config = tmp_path / "run.toml"
        config.write_text(to_toml(without_proofs(world, url).config))
        command = [sys.executable, "-c", INTERRUPTED, str(config), str(model_dir("short"))]
        process = subprocess.Popen(command, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n"
            served.hangs, before = True, len(served.asked)
            process.stdin.write("go on\n")
            process.stdin.flush()
            wait_until(lambda: len(served.asked) == before + 3, 60.0, "three requests were not made")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60.0)
        finally:
            process.kill()
            process.wait()
    assert (process.returncode, said) == (0, "")


def test_a_server_that_is_gone_is_an_error_with_its_url(world: World) -> None:
    with serving(server()) as url:
        pass
    with pytest.raises(ModelError, match=rf"workers.server {url}: does not answer /v1/models"):
        engine_at(without_proofs(world, url).config)


def test_a_server_needs_a_run_that_says_that_it_has_no_proofs(world: World) -> None:
    tree = world.config.model_dump(mode="json")
    tree["audit"]["proofs"] = True
    tree["workers"] |= {"server": "http://127.0.0.1:8000", "engine": "vllm-server"}
    with pytest.raises(ConfigError, match=r"set audit.proofs = false"):
        check_config(tree, "test")


def test_a_machine_that_joins_sends_nothing_to_a_server_that_the_run_card_names(world: World, tmp_path: Path) -> None:
    card = without_proofs(world, "http://10.0.0.7:8000").config
    own = as_own_machine(RunDir(tmp_path, card)).config.workers
    assert (own.server, own.engine) == ("", "auto")
    lent = machine(RunDir(tmp_path, card), None, None, None, server="http://127.0.0.1:8000").config.workers
    assert (lent.server, lent.engine) == ("http://127.0.0.1:8000", "vllm-server")


def test_a_run_with_proofs_refuses_files_without_them(world: World) -> None:
    honest = world.honest()
    bare = replace(honest, rollouts=[replace(sample, proof=b"") for sample in honest.rollouts])
    assert world.verdict_on(bare) is None
    finding = build_world("short", **STOCK).verdict_on(bare)
    assert finding is not None
    assert (finding.check, finding.claimed) == ("computation", "0 bytes")
