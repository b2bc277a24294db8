"""Parts that several benchmarks share: results, progress, configs, and the processes of a run."""
