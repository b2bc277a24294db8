"""Numeric evidence: how likely what a file claims is for an honest machine whose arithmetic rounds otherwise."""
