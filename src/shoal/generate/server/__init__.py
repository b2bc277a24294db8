"""A stock vLLM server as engine, through its OpenAI-compatible API: it is not changed, and gives no proofs."""
