"""The processes of a run, one module per role. Read these first: each shows one role's loop from start to end."""
