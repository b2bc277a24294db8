"""Measurements of answering prompts: the engine and evaluation."""
