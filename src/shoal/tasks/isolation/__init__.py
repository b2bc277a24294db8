"""Isolation of strangers' code: Landlock, seccomp, bubblewrap sandboxes, and the broker that starts them."""
