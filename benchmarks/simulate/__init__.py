"""Simulations: against the paper, against real runs on this machine, and to internet scale."""
