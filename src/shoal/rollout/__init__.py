"""Generating rollouts: engines, sampling that can be checked, leases, the rollout record and the worker."""
