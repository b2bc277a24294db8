"""Environments: tasks that are played in turns, with tools, games and searches that answer what the policy says."""
