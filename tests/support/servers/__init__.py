"""Real servers for tests and benchmarks, and the programs they need: anvil, PostgreSQL, nginx."""
