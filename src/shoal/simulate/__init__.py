"""A run that is simulated: trainer, relays, workers and validators as events on a clock, decided by the real rules."""
