"""vLLM's final states and logits of given sequences: a script for an interpreter that has vLLM and may lack Shoal.

One line of JSON comes in per request and one goes out per reply, followed by raw bytes where it says so:

    in   {"model": "/path", "max_len": 300}
    out  {"vllm": "0.32.0"}
    in   {"tokens": [1, 2, 3, ...], "begin": 12}
    out  {"states": [T, D], "logits": [T, V]}, then the bfloat16 bits of both, of the places from `begin` on

Each sequence is one prefill in bfloat16. With `"states": true` and a `"budget"` of tokens per forward pass in the first
line, states alone are computed, in float32, by the pooling runner, for several sequences at a time. The first reply
then has `"reloads"`: whether this interpreter has Shoal, too, which loads and compares other versions. An empty
`"said"` is the answer to a version that is as its files say; after another one nothing of this process is certain:

    in   {"load": "/path", "dtype": "float32"}
    out  {"said": ""}
    in   {"sequences": [[1, 2, 3, ...], ...], "begins": [12, ...]}
    out  {"states": [[T, D], ...]}, then their float32 bits

`"engine"` in the first line has more arguments of vLLM's, such as how much of a device it may take.

It runs in this process (no pickle), on the loopback interface, without a hub.
"""

import json
import os
import sys
from typing import Any

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    # Float32 is float32 in each matrix product: Triton, in which vLLM computes attention for it, takes TF32 on GPUs.
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
    "TRITON_F32_DEFAULT": "ieee",
}


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what vLLM prints goes to stderr
    os.environ.update(SETTINGS)
    job = json.loads(sys.stdin.readline())
    (pool if job.get("states") else watch_model)(job, replies)


def pool(job: dict[str, Any], replies: Any) -> None:
    """States of every token, from the pooling runner."""
    import vllm

    engine = vllm.LLM(
        model=job["model"],
        runner="pooling",  # which asks for the tokenizer, though it is given tokens
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        enable_chunked_prefill=True,
        max_model_len=job["max_len"] + 1,
        max_num_batched_tokens=job["budget"],
        pooler_config={"task": "token_embed", "use_activation": False},
        **job.get("engine", {}),
    )
    load = reloader()
    reply(replies, {"vllm": vllm.__version__, "reloads": load is not None})
    for line in sys.stdin:
        asked = json.loads(line)
        if load is not None and "load" in asked:
            (said,) = engine.collective_rpc(reload, args=(load, asked["load"], asked["dtype"]))
            reply(replies, {"said": said})
            continue
        prompts = [{"prompt_token_ids": tokens} for tokens in asked["sequences"]]
        outputs = engine.encode(prompts, pooling_task="token_embed", use_tqdm=False)
        found = [
            output.outputs.data[begin:].float().contiguous()
            for output, begin in zip(outputs, asked["begins"], strict=True)
        ]
        data = b"".join(states_TD.numpy().tobytes() for states_TD in found)
        reply(replies, {"states": [list(states_TD.shape) for states_TD in found]}, data)


def reloader() -> Any:
    """What loads another version into vLLM's worker; None where Shoal cannot be imported."""
    try:
        from shoal.generate.vllm.states_reload import load_states_version
    except ImportError:
        return None
    return load_states_version


def reload(worker: Any, load: Any, folder: str, dtype: str) -> str:
    """Gives vLLM's worker, which is in this process, another version."""
    return str(load(worker, folder, dtype))


def watch_model(job: dict[str, Any], replies: Any) -> None:
    """States and logits as an engine that generates computes them."""
    import vllm

    engine = vllm.LLM(
        model=job["model"],
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=job["max_len"] + 1,
        max_num_batched_tokens=max(2048, job["max_len"] + 1),
        max_num_seqs=1,
        **job.get("engine", {}),
    )
    import torch  # vLLM has loaded it by now

    passes: list[Any] = []
    models: list[Any] = []

    def watch(model: Any) -> None:
        models.append(model)
        model.register_forward_hook(lambda *hooked: passes.append(hooked[-1]))

    engine.apply_model(watch)
    once = vllm.SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
    reply(replies, {"vllm": vllm.__version__})
    for line in sys.stdin:
        asked = json.loads(line)
        tokens = asked["tokens"]
        passes.clear()
        engine.generate([{"prompt_token_ids": tokens}], once, use_tqdm=False)
        # The first pass after a pause may be one of warming up: the last one is that of the sequence.
        states_TD = passes[-1][: len(tokens)][asked["begin"] :]
        with torch.inference_mode():
            logits_TV = models[0].compute_logits(states_TD)
        parts = [x.to(torch.bfloat16).contiguous() for x in (states_TD, logits_TV)]
        data = b"".join(x.view(torch.int16).numpy().tobytes() for x in parts)
        reply(replies, {"states": list(parts[0].shape), "logits": list(parts[1].shape)}, data)


def reply(pipe: Any, message: object, data: bytes = b"") -> None:
    pipe.write(json.dumps(message).encode() + b"\n" + data)
    pipe.flush()


if __name__ == "__main__":
    main()
