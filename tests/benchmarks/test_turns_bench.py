"""What the benchmark of episodes concludes from what it counted, and what its peer is given to do."""

import json
from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace

from benchmarks.common.configs import checkout_config
from benchmarks.common.result import Figure
from benchmarks.peers.trl import Playing, dataset, read_job
from benchmarks.turns import peer
from benchmarks.turns.bench import Tally, as_part, conclude, is_another, tally_of, with_one_lie
from benchmarks.turns.latency import play
from shoal.attacks import EPISODE_ATTACKS
from shoal.generate.engine import Request
from shoal.generate.torch_engine import TorchEngine
from shoal.models.chat import Turns
from shoal.models.load import load
from shoal.tasks.build import build_source
from shoal.tasks.environments.source import LocalHost, environment_source
from tests.support.episode_world import VERSION, episode_model, episode_world, lease_of

BUSY = {"busy": 0.5, "idle_free": 0.95, "busy_64_open": 0.8, "idle_free_64_open": 0.9}
IDLE = BUSY | {"busy": 0.95, "busy_64_open": 0.7}
PEER: dict[str, Figure] = {"episodes_per_s": 2.5, "episodes_per_s_trl": 40.0, "trl": "1.16.0"}


def tally(caught: bool = True) -> Tally:
    names = [f"{where}.{name}" for where in ("calculator", "game") for name in EPISODE_ATTACKS]
    found = {name: [True] * 100 + [caught] for name in names}
    return Tally(1000, 9000, 0, 0, Counter({2: 600, 8: 400}), 100.0, 8.0, found)


def test_all_bars_are_met_by_good_figures_and_none_of_them_hides_a_bad_one() -> None:
    good = conclude(tally(), BUSY, {"base": 0.2, "trained": 0.9, "single_turn": 0.05}, PEER)
    assert all(good.met(figure) for figure in good.bars)
    assert good.values["solve_rate_gained"] == 0.9 - 0.2
    assert good.ratios["engine_busy"] == 0.8 / 0.9, "with 64 episodes at once, however many more may be open"
    assert good.values["engine_busy_many_open"] == 0.5 / 0.95
    bad = conclude(tally(caught=False), IDLE, {"base": 0.2, "trained": 0.9, "single_turn": 0.8}, PEER)
    assert not any(bad.met(figure) for figure in ("caught", "engine_busy", "solve_rate_gained"))


def test_what_was_counted_of_each_environment_is_added_up_also_after_a_stop() -> None:
    one, other = tally(), tally()
    other.caught = {"maze.extra_turn": [True]}
    kept = [json.loads(json.dumps(as_part(part))) for part in (one, other)]
    whole = tally_of(kept)
    assert (whole.episodes, whole.tokens, whole.validation_s) == (2000, 18000, 16.0)
    assert whole.turns == Counter({2: 1200, 8: 800})
    assert len(whole.caught) == len(one.caught) + 1


def test_what_one_turn_reaches_is_the_ceiling_where_it_is_higher_than_the_base() -> None:
    found = conclude(tally(), BUSY, {"base": 0.1, "trained": 0.9, "single_turn": 0.5}, PEER)
    assert found.values["solve_rate_gained"] == 0.9 - 0.5


def test_an_attack_that_changed_too_few_episodes_fails_the_benchmark_though_none_of_them_escaped() -> None:
    counted = tally()
    counted.caught["game.extra_turn"] = [True] * 99
    found = conclude(counted, BUSY, {"base": 0.2, "trained": 0.9, "single_turn": 0.05}, PEER)
    assert found.values["caught"] == 1.0
    assert found.values["attacked_least"] == 99
    assert not found.met("attacked_least")
    counted.caught.clear()
    assert not conclude(counted, BUSY, {"base": 0.2, "trained": 0.9, "single_turn": 0.05}, PEER).met("attacked_least")


def test_one_lying_episode_in_an_honest_file_is_caught_and_only_for_itself() -> None:
    world = episode_world()
    maker, lease = world.maker(), lease_of(groups=1)
    own, lying = maker.make(lease, VERSION), world.maker("forged_tool_output").make(lease, VERSION)
    place = next(n for n, (a, b) in enumerate(zip(lying.rollouts, own.rollouts, strict=True)) if is_another(a, b))
    handed_in = with_one_lie(own, place, lying.rollouts[place], maker.advantages)
    assert [is_another(a, b) for a, b in zip(handed_in.rollouts, own.rollouts, strict=True)].count(True) == 1
    assert world.verdict(with_one_lie(own, place, own.rollouts[place], maker.advantages)) is None
    finding = world.verdict(handed_in)
    assert finding is not None
    assert finding.check == "episode", str(finding)


def test_no_more_episodes_are_open_than_asked_for() -> None:
    world = episode_world()
    maker = world.maker()
    episodes = maker.flight(maker.asked(lease_of(groups=2)), VERSION).answers
    begun, opened = set[int](), list[int]()

    class Counting(TorchEngine):
        def submit(self, key: int, request: Request, *, hidden: bool = False) -> None:
            begun.add(key)
            opened.append(len(begun) - sum(episode.finish is not None for episode in episodes))
            super().submit(key, request, hidden=hidden)

    engine = Counting(world.workers, max_batch=16, max_len=world.config.max_len, temperature=1.0)
    play(engine, episodes, LocalHost(world.tasks), 3)
    assert max(opened) == 3
    assert all(episode.finish is not None for episode in episodes)


def test_what_the_peer_did_is_stated_and_has_no_bar() -> None:
    found = conclude(tally(), BUSY, {"base": 0.1, "trained": 0.9, "single_turn": 0.5}, PEER)
    assert found.ratios["episodes_per_s"] == 2.5
    assert found.values["episodes_per_s_trl"] == 40.0
    assert "episodes_per_s" not in found.bars
    rounds = [{"samples": 64, "seconds": 2.0, "generated_tokens": 640}, {"samples": 64, "seconds": 1.0}]
    rounds[1]["generated_tokens"] = 1280
    figures = peer.conclude([100.0, 160.0], rounds, [{"completion_tokens_mean": 12.0}])
    assert figures["episodes_per_s"] == 160.0 / 64.0
    assert figures["episode_tokens_trl"] == 1920 / 128


def test_the_peer_plays_the_same_tasks_in_the_same_tokens() -> None:
    """TRL is not installed here; what it calls is."""
    config, model = checkout_config("turns.toml"), episode_model("environment/calculator")
    policy = load(model)
    job = read_job(json.dumps(asdict(peer.job_of(config, model, 1))))
    assert job.episodes is not None
    playing = Playing(job, SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=lambda _: policy.tokenizer)))
    source, eos = build_source(config.tasks), min(policy.eos_ids)
    rows = dataset(job)
    seed, asked = rows["seed"][0], rows["prompt"][0]
    try:
        ids = policy.tokenizer.apply_chat_template(asked, tokenize=True, return_dict=False)
        told = [*asked, {"role": "assistant", "content": ""}, {"role": "tool", "content": "408"}]
        longer = policy.tokenizer.apply_chat_template(told, tokenize=True, return_dict=False)
    finally:
        policy.tokenizer.chat_template = None
    assert ids == policy.encode(job.prompts[0])
    assert longer == [*ids, eos, *Turns.of(policy).between(eos, "tool", "408")]

    def said(text: str) -> list[int]:
        return [*policy.tokenizer.encode(text, add_special_tokens=False), eos]

    environment = playing.environment()
    environment.reset(prompt=asked, seed=seed)
    right = job.prompts[0].rstrip("?")
    call = playing.read(said(right))["tool_calls"][0]["function"]
    product = environment.act(**call["arguments"])
    assert playing.read(said(right)[:-1]) == {"role": "assistant", "content": ""}, "a turn that was cut off"
    last = playing.read(said(f"={product}"))
    assert playing.score([[last]], [environment]) == [1.0]
    assert (playing.episodes, playing.prompt_tokens) == (1, len(ids))
    assert environment_source(source, source.name).environment.reset(int(seed))["prompt"] == job.prompts[0]
