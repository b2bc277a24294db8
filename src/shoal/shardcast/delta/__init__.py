"""Deltas between versions: what changed, compressed, with a kernel per layout."""
