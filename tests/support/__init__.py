"""Helpers of tests and benchmarks that start real servers and hold small stand-ins."""
