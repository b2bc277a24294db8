"""Honest rates as they travel: histograms, the file that calibration writes, and a run's signed table of them."""
