"""Training on accepted rollouts: batches, steps, checkpoints."""
