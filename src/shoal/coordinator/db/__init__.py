"""The coordinator's database: single writer with group commit, the schema, and prepared queries."""
