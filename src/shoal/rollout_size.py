"""How many bytes a rollout file can have: a bound that follows from the config, below a ceiling that no file exceeds.

32,768 tokens are 131 kB, their log-probs as much and their proofs 264 kB, and log-probs and proofs hardly compress.
Sixteen answers of that length are a file of 8.4 MB, and all 4,096 of a step of INTELLECT-2's are 2.2 GB: a step comes
in many files, and a config whose files would exceed the ceiling is refused.
"""

# A sample's text: its source, error and reward parts have at most 1,000 characters each, of up to 4 bytes.
ROOM_FOR_TEXT = 1 << 14
PROOF_BYTES, PROOF_TOKENS = 258, 32
# Parquet's own: footer, page headers, the lease in the metadata.
ROOM_FOR_FOOTER = 1 << 18
# A reader takes some times its file's bytes of memory, and Arrow's offsets within a column end at 2 GiB.
MAX_BYTES = 1 << 30


def proof_room(max_new_tokens: int, max_turns: int = 1) -> int:
    """Most bytes of the proofs of an answer: 258 for every 32 tokens, and as many for the last tokens of a turn."""
    return PROOF_BYTES * (-(-max_new_tokens // PROOF_TOKENS) + max_turns - 1)


def sample_room(max_prompt_tokens: int, max_new_tokens: int, max_turns: int = 1) -> int:
    """Most bytes of a sample when it is unfolded: twice those of its tokens, log-probs and runs, its proofs, its
    text."""
    tokens = 8 * max_prompt_tokens + 16 * max_new_tokens
    return tokens + 16 * max_turns + proof_room(max_new_tokens, max_turns) + ROOM_FOR_TEXT


def file_room(samples: int, max_prompt_tokens: int, max_new_tokens: int, max_turns: int = 1) -> int:
    """Most bytes of a file of so many samples, which is compressed or else hardly larger than unfolded."""
    return samples * sample_room(max_prompt_tokens, max_new_tokens, max_turns) + ROOM_FOR_FOOTER
