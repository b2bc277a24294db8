"""Measurements of how versions of the weights travel: deltas and broadcast."""
