"""Measurements of a coordinator with many nodes."""
