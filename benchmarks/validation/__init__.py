"""Measurements of proofs, checks and cheaters."""
