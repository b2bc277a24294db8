"""Validation of untrusted files before the trainer may use them: one module per check, from cheap to costly."""
