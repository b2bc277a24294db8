"""Sample n answers per task and score them. The answers to a task depend on nothing that is asked beside it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shoal.config import TurnsConfig
from shoal.errors import TaskError
from shoal.generate.engine import Completion, Request
from shoal.generate.environment_calls import play_all
from shoal.generate.episodes import Episode, EpisodeCompletion
from shoal.generate.flights import Answer
from shoal.generate.torch_engine import TorchEngine
from shoal.models.chat import Turns
from shoal.models.load import Policy
from shoal.tasks.source import Judge, Score, Split, Task, draw

# Answers generated in one call of the engine: enough to keep its slots full, few enough to see progress.
AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Drawing:
    """How answers are drawn."""

    samples: int
    temperature: float
    max_new_tokens: int
    max_prompt_tokens: int
    max_batch: int = 128
    seed: int = 0
    environments: frozenset[str] = frozenset()
    """Names of the tasks that are played in turns."""
    turns: TurnsConfig = field(default_factory=TurnsConfig)


@dataclass(frozen=True, slots=True)
class Answered:
    """One task with the scores of its answers."""

    task: Task
    scores: list[Score]
    tokens: list[int]

    @property
    def solved(self) -> int:
        """Answers that are fully right; one that could not be scored is not."""
        return sum(_task_reward(score) >= 1.0 for score in self.scores)

    @property
    def failed(self) -> int:
        return sum(score.reward is None for score in self.scores)

    @property
    def mean_reward(self) -> float:
        return sum(_task_reward(score) for score in self.scores) / len(self.scores)


def _task_reward(score: Score) -> float:
    return 0.0 if score.reward is None else score.parts.get("task", score.reward)


def answer_tasks(
    policy: Policy, tasks: Sequence[Task], judge: Judge, split: Split, drawing: Drawing
) -> Iterator[Answered]:
    """Yields the tasks in their order, some at a time."""
    prompts = [tuple(policy.encode_task(task)) for task in tasks]
    longest = max(map(len, prompts), default=0)
    if longest > drawing.max_prompt_tokens:
        task = next(task for task, prompt in zip(tasks, prompts, strict=True) if len(prompt) == longest)
        raise TaskError(
            f"max_prompt_tokens = {drawing.max_prompt_tokens}: {task.source} {split} task {task.index} takes {longest} "
            "tokens; raise it to at least that"
        )
    engine = TorchEngine(
        policy,
        max_batch=drawing.max_batch,
        max_len=longest + drawing.max_new_tokens,
        temperature=drawing.temperature,
        proofs=False,
    )
    chunk = max(1, AT_ONCE // drawing.samples)
    asked = Counter[tuple[str, int]]()  # a task that comes again, as where a table has few, gets other answers
    for begin in range(0, len(tasks), chunk):
        part, requests = tasks[begin : begin + chunk], list[Request]()
        for place, task in enumerate(part, begin):
            seed, first = draw("answers", drawing.seed, task.source, task.index), asked[task.source, task.index]
            numbers = range(first, first + drawing.samples)
            requests += [Request(prompts[place], seed, number, drawing.max_new_tokens) for number in numbers]
            asked[task.source, task.index] += drawing.samples
        asked_of = [task for task in part for _ in range(drawing.samples)]
        made = list(_answers(policy, engine, judge, split, drawing, asked_of, requests))
        texts = [(task, policy.decode(c.tokens)) for task, c in zip(asked_of, made, strict=True) if _is_text(c)]
        scored = iter(judge.scores(split, texts) if texts else ())
        scores = [c.score or next(scored) if isinstance(c, EpisodeCompletion) else next(scored) for c in made]
        for place, task in enumerate(part):
            own = slice(place * drawing.samples, (place + 1) * drawing.samples)
            yield Answered(task, scores[own], [len(c.logprobs) for c in made[own]])


def _is_text(answer: Completion) -> bool:
    return not isinstance(answer, EpisodeCompletion)


def _answers(
    policy: Policy,
    engine: TorchEngine,
    judge: Judge,
    split: Split,
    drawing: Drawing,
    tasks: Sequence[Task],
    requests: Sequence[Request],
) -> list[Completion]:
    """An answer per request, in order; tasks of environments are played turn by turn."""
    if not any(task.source in drawing.environments for task in tasks):
        return sorted(engine.generate(requests), key=lambda completion: completion.key)
    turns = Turns.of(policy)
    answers = [
        Episode.of(request, task, drawing.turns, policy, turns)
        if task.source in drawing.environments
        else Answer(request)
        for task, request in zip(tasks, requests, strict=True)
    ]
    return play_all(engine, answers, judge, split, drawing.max_new_tokens)
