"""Tasks: programs run as written, nothing is forgotten where that is promised, floors are those of a best reader."""

from itertools import product
from statistics import fmean

import numpy as np
import pytest

from shoal.errors import FbamError
from shoal.fbam.frames import IGNORED
from shoal.fbam.tasks import S5, TASKS, Frjt, FrjtLive, Maze, build_task, equivalent_window
from shoal.fbam.tasks.maze import SIDE, START_CELL
from shoal.fbam.tasks.s5 import ELEMENTS, GENERATORS
from shoal.fbam.tasks.window import accuracy_lower_bound

PROGRAMS = 200
MANY = 10**8  # sequences, with which an accuracy has next to no sampling error


def run_program(init: int, blocks: list[tuple[int, int, int]]) -> int:
    """The rules as the paper's task is quoted: where a program halts."""
    register, pc = init, 0
    while pc < len(blocks):
        flip, *offsets = blocks[pc]
        register ^= flip
        pc += offsets[register]
    return pc


@pytest.mark.parametrize("kind", [Frjt, FrjtLive])
@pytest.mark.parametrize("depth", [1, 2, 3, 17])
def test_the_answer_is_where_the_program_halts(kind: type[Frjt], depth: int) -> None:
    task, rng = kind(), np.random.default_rng(depth)
    blocks_BT, init_B = task.draw_blocks(rng, PROGRAMS, depth), rng.integers(2, size=PROGRAMS)
    halts = task.halts(init_B, blocks_BT)
    for program in range(PROGRAMS):
        parts = [tuple(map(int, part)) for part in zip(*task.jumps.parts(blocks_BT[program]), strict=True)]
        blocks = [(flip, first, second) for flip, first, second in parts]
        assert all(0 <= flip < 2 and 1 <= first <= 4 and 1 <= second <= 4 for flip, first, second in blocks)
        assert run_program(int(init_B[program]), blocks) == depth + halts[program]


def test_the_frames_of_a_program_tell_it_and_only_the_last_is_scored() -> None:
    task = Frjt()
    blocks = np.array([[task.jumps.block(np.array(1), np.array(3), np.array(1)), 0]])
    stream = task.stream(np.array([1]), blocks)
    text = ["".join(map(chr, frame.tolist())) for frame in stream.frames(0, 3)[0, :, 0, 0]]
    assert text == [">>+", "f3a", "k1a"]
    assert stream.targets(0, 3).tolist() == [[IGNORED, IGNORED, 1]], "register 0 jumps 3 blocks, one behind the end"


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 40])
def test_live_programs_halt_differently_from_each_register(depth: int) -> None:
    task = FrjtLive()
    blocks_BT = task.draw_blocks(np.random.default_rng(0), 500, depth)
    from_0, from_1 = (task.halts(np.full(500, init), blocks_BT) for init in (0, 1))
    assert (from_0 != from_1).all()
    assert 0.3 < from_0.mean() < 0.7


def test_random_programs_forget_their_start_and_live_ones_do_not() -> None:
    kept = {}
    for kind in (Frjt, FrjtLive):
        task = kind()
        blocks_BT = task.draw_blocks(np.random.default_rng(0), 500, 40)
        ends = [task.halts(np.full(500, init), blocks_BT) for init in (0, 1)]
        kept[kind.name] = float((ends[0] != ends[1]).mean())
    assert kept["frjt"] < 0.05
    assert kept["frjt-live"] == 1.0


@pytest.mark.parametrize(("window", "floor"), [(1, 0.638), (4, 0.753), (8, 0.839), (16, 0.933), (32, 0.988)])
def test_the_floor_of_random_programs_is_the_known_one(window: int, floor: float) -> None:
    assert Frjt().window_floor(64, window) == pytest.approx(floor, abs=0.01)


def test_the_floor_is_what_the_best_reader_of_all_short_windows_reaches() -> None:
    """Counting, without the floor's code: of all programs of three blocks, the best guess after the last one alone."""
    task = Frjt(2)
    weights = [task.jumps.block_weights(remaining) for remaining in (2, 1, 0)]
    chances = np.zeros((task.jumps.blocks, 2))
    for init, *blocks in product(range(2), *(range(task.jumps.blocks),) * 3):
        halt = task.halts(np.array([init]), np.array([blocks]))[0]
        chances[blocks[-1], halt] += 0.5 * np.prod([w[block] for w, block in zip(weights, blocks, strict=True)])
    assert chances.sum() == pytest.approx(1.0)
    assert task.window_floor(3, 1) == pytest.approx(chances.max(axis=1).sum(), abs=0.012)


def test_floors_rise_with_the_window_and_reach_one_with_the_whole_sequence() -> None:
    for name in TASKS:
        task = build_task(name)
        floors = [task.window_floor(12, window) for window in (0, 3, 6, 13)]
        assert floors == sorted(floors), name
        assert floors[-1] == 1.0, name
    assert FrjtLive().window_floor(12, 12) == 0.5, "all but the first frame are worth nothing"


def test_an_accuracy_has_the_window_that_explains_it() -> None:
    task = Frjt()
    assert equivalent_window(task, 64, 0.5, MANY) == 0
    assert 3 <= equivalent_window(task, 64, 0.753, MANY) <= 5
    assert equivalent_window(task, 64, 1.0, MANY) == 65
    assert equivalent_window(FrjtLive(), 64, 0.55, 1024) == 65, "no window short of the whole explains 0.55 of 1,024"


@pytest.mark.parametrize(
    ("task", "length", "accuracy"), [(FrjtLive(), 32, 0.506), (FrjtLive(), 64, 0.516), (S5(), 128, 10 / 1024)]
)
def test_an_accuracy_at_chance_needs_no_window_though_it_is_above_the_floor(
    task: FrjtLive | S5, length: int, accuracy: float
) -> None:
    assert accuracy > task.window_floor(length, length // 2)
    assert equivalent_window(task, length, accuracy, 1024) == 0
    assert equivalent_window(task, length, accuracy, MANY) > 0, "with enough sequences the same excess is not chance"


def test_few_models_at_chance_are_above_the_lower_bound_of_their_accuracy() -> None:
    """One in a hundred may seem to be above the floor; with next to none the bound would be wider than it has to be."""
    for floor in (0.5, 0.25, 1 / 120):
        drawn = np.random.default_rng(0).binomial(1024, floor, size=20_000).tolist()
        above = fmean(accuracy_lower_bound(right / 1024, 1024) > floor for right in drawn)
        assert 0.002 < above < 0.02, floor
    assert accuracy_lower_bound(0.0, 1024) == pytest.approx(0.0, abs=1e-12)
    assert accuracy_lower_bound(1.0, 1024) == pytest.approx(0.9947, abs=1e-4)


def test_s5_targets_are_products_of_permutations() -> None:
    task = S5()
    stream = task.draw(np.random.default_rng(0), 3, 20)
    for word, targets in zip(stream.frames(0, 20)[:, :, 0, 0, 0].tolist(), stream.targets(0, 20).tolist(), strict=True):
        things = list(range(5))
        for symbol, target in zip(word, targets, strict=True):
            things = [things[i] for i in GENERATORS[chr(symbol)]]
            assert ELEMENTS[target] == tuple(things)


def test_s5_generators_reach_all_120_elements_and_the_floor_falls_to_one_in_120() -> None:
    assert S5().window_floor(1, 0) == pytest.approx(1 / 3)
    assert S5().window_floor(400, 0) == pytest.approx(1 / 120, rel=1e-3)
    assert S5().window_floor(400, 100) == pytest.approx(1 / 120, rel=1e-3)


def test_the_maze_is_a_tree_and_a_blocked_move_stays() -> None:
    after = Maze().after_MC
    passages = {frozenset((cell, int(other))) for move in after for cell, other in enumerate(move) if other != cell}
    assert len(passages) == SIDE * SIDE - 1
    reached = {START_CELL}
    while more := {int(other) for cell in reached for other in after[:, cell]} - reached:
        reached |= more
    assert len(reached) == SIDE * SIDE, "connected, with one passage less than cells: a tree"
    for move, back in ((0, 1), (2, 3)):
        moved = after[move] != np.arange(SIDE * SIDE)
        assert (after[back][after[move][moved]] == np.flatnonzero(moved)).all()


def test_maze_targets_follow_the_moves() -> None:
    task = Maze()
    stream = task.draw(np.random.default_rng(0), 2, 30)
    for moves, targets in zip(
        stream.frames(0, 30)[:, :, 0, 0, 0].tolist(), stream.targets(0, 30).tolist(), strict=True
    ):
        cell = START_CELL
        for symbol, target in zip(moves, targets, strict=True):
            cell = int(task.after_MC["^v<>".index(chr(symbol)), cell])
            assert target == cell


@pytest.mark.parametrize("name", TASKS)
def test_a_draw_depends_on_the_random_state_alone(name: str) -> None:
    task = build_task(name)
    first, again = (task.draw(np.random.default_rng(3), 4, 9) for _ in range(2))
    other = task.draw(np.random.default_rng(4), 4, 9)
    assert (first.frames(0, 9) == again.frames(0, 9)).all()
    assert (first.targets(0, 9) == again.targets(0, 9)).all()
    assert (first.frames(0, 9) != other.frames(0, 9)).any()


@pytest.mark.parametrize("name", TASKS)
def test_a_window_of_all_frames_explains_everything_and_one_frame_less_does_not(name: str) -> None:
    task = build_task(name)
    assert task.frames(9) == task.draw(np.random.default_rng(0), 1, 9).length
    assert task.window_floor(9, task.frames(9)) == 1.0
    assert task.window_floor(9, task.frames(9) - 1) < 1.0
    assert equivalent_window(task, 9, 1.0, MANY) == task.frames(9)


def test_an_unknown_task_and_offsets_that_no_frame_shows_are_refused() -> None:
    with pytest.raises(FbamError, match="task chess: unknown; give one of frjt, frjt-live, s5, maze"):
        build_task("chess")
    with pytest.raises(FbamError, match="frjt: offsets up to 10; give 2 to 9"):
        Frjt(10)
