"""The mathematics of a training step as pure functions: values in, values out, no I/O."""
