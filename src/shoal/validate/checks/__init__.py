"""The checks of a file, one module each; `all_checks` runs them in order."""
