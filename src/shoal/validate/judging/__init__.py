"""Judging one file: which answers are computed again, what decides, and in which order. Nobody is told from here."""
