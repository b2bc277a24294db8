"""What a run needs on each kind of machine, computed before it starts: memory, disk, traffic and time."""
