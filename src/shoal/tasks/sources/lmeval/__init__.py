"""Tasks of lm-evaluation-harness, by their YAML files."""
