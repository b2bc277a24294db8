"""Held-out evaluation: answers sampled and scored, pass rates with their errors, suites, filtering by difficulty."""
