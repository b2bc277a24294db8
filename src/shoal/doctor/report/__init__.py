"""`shoal doctor --report`: every step in a process of its own, and one file that can be sent away."""
