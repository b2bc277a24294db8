"""Asynchronous reinforcement learning of language models over a swarm of machines that nobody has to trust."""

__version__ = "0.1.0"
