"""Tasks: what is asked, and how answers are scored."""
