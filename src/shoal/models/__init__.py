"""Loading and saving causal LMs, and the one attention function through which generation and training see them."""
