"""Step `reload`: after a version is loaded from its directory, the device holds its bits, and answers are its own."""

import torch

from shoal.devices import CPU
from shoal.doctor.steps.context import Context, StepFailed, Values
from shoal.generate.torch_engine import TorchEngine
from shoal.models.load import load
from shoal.models.weights import read_weights, write_weights

ANSWERS = 8
STEP = 1e-2


def run(context: Context) -> Values:
    policy = load(context.model, "float32", context.device)
    sampling = context.config.sampling
    engine = TorchEngine(
        policy, max_batch=ANSWERS, max_len=context.config.max_len, temperature=sampling.temperature, proofs=False
    )
    before = {name: tensor.detach().to(CPU).clone() for name, tensor in policy.weights().items()}
    generator = torch.Generator().manual_seed(1)
    after = {
        name: w + STEP * w.std().nan_to_num() * torch.randn(w.shape, generator=generator) for name, w in before.items()
    }
    folders = [context.scratch / name for name in ("one", "two")]
    for folder, weights in zip(folders, (before, after), strict=True):
        folder.mkdir()
        write_weights(folder, weights)
    requests = context.requests(policy, ANSWERS)
    texts, wrong = [], 0
    for folder in (*folders, folders[0]):
        engine.load(folder, folder.name)
        held = policy.weights()
        wrong += sum(not torch.equal(held[name].to(CPU), w) for name, w in read_weights(folder, "float32").items())
        texts.append([answer.tokens for answer in sorted(engine.generate(requests), key=lambda answer: answer.key)])
    if wrong or texts[0] != texts[2]:
        raise StepFailed(
            f"{wrong} tensors differ from their file after a load; answers of the first version "
            f"{'come again' if texts[0] == texts[2] else 'differ'} after another was loaded between"
        )
    changed = sum(one != two for one, two in zip(texts[0], texts[1], strict=True))
    return {"loads": 3, "tensors": len(before), "tensors_wrong": wrong, "answers_changed_by_version": changed}
