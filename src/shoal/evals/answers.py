"""Sample n answers per task and score them. The answers to a task depend on nothing that is asked beside it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal.errors import TaskError
from shoal.generate.engine import Request
from shoal.generate.torch_engine import TorchEngine
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
        made = sorted(engine.generate(requests), key=lambda completion: completion.key)
        scores = judge.scores(split, [(part[c.key // drawing.samples], policy.decode(c.tokens)) for c in made])
        for place, task in enumerate(part):
            own = slice(place * drawing.samples, (place + 1) * drawing.samples)
            yield Answered(task, scores[own], [len(c.tokens) for c in made[own]])
