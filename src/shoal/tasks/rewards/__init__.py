"""Rewards: extracting answers, math, code, combining several, and the scorer process."""
