"""An OpenAI-compatible endpoint of a run's versions: HTTP shapes, scheduling of requests, server and terminal."""
