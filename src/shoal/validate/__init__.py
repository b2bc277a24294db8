"""What an untrusted file must pass before the trainer may use it: one module a check, from cheap to costly."""
