"""Upper bound on the size of a run's rollout files, from its config."""

from shoal.config import RunConfig

# Bytes a sample may take besides its tokens and log-probs: text, and a proof of 258 bytes for every 32 tokens.
ROOM_FOR_TEXT = 8192
PROOF_BYTES, PROOF_TOKENS = 258, 32
# A file larger than this is refused unread; 4096 samples of 32k tokens with log-probs compress to less.
MAX_BYTES = 1 << 30
# Parquet's own: footer, page headers, the lease in the metadata.
ROOM_FOR_FOOTER = 1 << 18


def proof_room(max_new_tokens: int) -> int:
    return PROOF_BYTES * -(-max_new_tokens // PROOF_TOKENS)


def sample_room(max_prompt_tokens: int, max_new_tokens: int) -> int:
    """Most bytes of a sample when it is unfolded."""
    return 8 * max_prompt_tokens + 16 * max_new_tokens + proof_room(max_new_tokens) + ROOM_FOR_TEXT


def file_room(config: RunConfig) -> int:
    """Bytes of a submission at its largest, which is compressed or else hardly larger than unfolded."""
    sampling = config.sampling
    samples = config.workers.groups_per_submission * sampling.group_size
    return samples * sample_room(sampling.max_prompt_tokens, sampling.max_new_tokens) + ROOM_FOR_FOOTER


def max_file_bytes(config: RunConfig) -> int:
    """Most bytes that are taken as a submission."""
    return min(MAX_BYTES, file_room(config))
