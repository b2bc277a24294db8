"""Measurements of whole training runs, through coordinator, origin and relay as users run them."""
