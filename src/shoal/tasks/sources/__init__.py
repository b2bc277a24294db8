"""Task sources: where prompts and their answers come from."""
