"""Web pages of a run: how soon they are there, how large they are, and what open pages cost a run."""
