"""Manners of a lent machine (`shoal lend`): a supervisor that starts, pauses and ends a worker as its owner wishes."""
