"""Telemetry of roles: metrics (JSON lines) and status files."""
