"""Claims about answers that are sampled and scored."""

from shoal.evals.answers import Drawing, answer_tasks
from shoal.models.load import Policy
from shoal.tasks.source import InProcess
from tests.support.roles_in_process import Coin

DRAWING = Drawing(samples=2, temperature=1.0, max_new_tokens=4, max_prompt_tokens=16)


def test_a_task_that_is_asked_again_gets_other_answers(tiny_policy: Policy) -> None:
    coin = Coin()
    asked = [coin.task("heldout", 0)] * 16
    found = list(answer_tasks(tiny_policy, asked, InProcess(coin), "heldout", DRAWING))
    assert len({(*one.tokens, one.solved) for one in found}) > 1
    alone = list(answer_tasks(tiny_policy, asked[:1], InProcess(coin), "heldout", DRAWING))
    assert alone == found[:1]
