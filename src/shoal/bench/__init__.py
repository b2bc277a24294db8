"""Side-by-side measurements against peers, run by `shoal bench`."""
