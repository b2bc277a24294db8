"""Web pages of a run: documents made from its files, a small server, and static files that no build step touches."""
