"""vLLM as a worker's engine: the lease's noise, proofs while generating, versions loaded without a restart.

vLLM runs in processes of its own. `engine.py` is what the worker sees; `logits_processor_v1.py` and `_v2.py`,
`captured_states.py` and `worker_extension.py` run inside of vLLM's processes.
"""
