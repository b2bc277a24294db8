"""Other projects that we measure against, each a script in an environment of its own."""
