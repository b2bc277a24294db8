"""What roles write about themselves while they work: metrics (JSON lines) and status files."""
