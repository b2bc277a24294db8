"""Training and evaluation of action models."""
