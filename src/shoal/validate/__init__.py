"""Validation of untrusted files before the trainer may use them: checks from cheap to costly, and what they leave."""
