"""A machine that lends itself without a checkout: from nothing to its first accepted file."""
