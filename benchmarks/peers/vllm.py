"""vLLM on a list of prompts: one side of `python -m benchmarks engine`, where vLLM is installed.

A script that the engine benchmark runs in a process of its own; they meet in JSON lines:

    in   {"model": "/path", "prompts": [[1, 2], ...], "lengths": [17, ...], "max_len": 300}
    out  {"seconds": 60.1, "tokens": 33000, "vllm": "0.32.0"}
"""

import json
import os
import sys
import time

# Settings that vLLM reads when it is imported. It runs on loopback, keeps 1 GB of keys and values, and needs no hub.
SETTINGS = {
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints goes to stderr
    os.environ.update(SETTINGS)
    job = json.loads(sys.stdin.readline())
    import vllm

    engine = vllm.LLM(
        model=job["model"], dtype="float32", enforce_eager=True, max_model_len=job["max_len"], max_num_seqs=256
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    engine.generate(prompts[:1], vllm.SamplingParams(max_tokens=2), use_tqdm=False)
    # No `seed`: together with chunked prefill it kills the engine.
    lengths = [
        vllm.SamplingParams(temperature=1.0, ignore_eos=True, min_tokens=length, max_tokens=length)
        for length in job["lengths"]
    ]
    began = time.perf_counter()
    outputs = engine.generate(prompts, lengths, use_tqdm=False)
    seconds = time.perf_counter() - began
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    answers.write(json.dumps({"seconds": seconds, "tokens": tokens, "vllm": vllm.__version__}) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
