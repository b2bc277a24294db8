"""Servers that end at once and clients that do not wait long, for tests that start and end hundreds of both."""

from tests.support.coordinator_fixtures import impatient_clients, prompt_servers

__all__ = ["impatient_clients", "prompt_servers"]
