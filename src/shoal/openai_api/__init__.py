"""OpenAI's API on the wire: responses and errors, for whatever serves it."""
