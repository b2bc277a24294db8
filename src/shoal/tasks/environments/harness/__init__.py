"""Harnesses as environments: a program that speaks OpenAI's API asks, and what it asks is what an environment says."""
