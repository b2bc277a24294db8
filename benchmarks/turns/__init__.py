"""Episodes of several turns: honest and lying workers, tools that take time, and a run that learns to use one."""
