"""Training on accepted rollouts and publishing what comes of it."""
