"""Servers: hand a store's files out, with rate limits and the tree of relays."""
