"""reasoning-gym as a task source, with fixes for generators that are not deterministic or not safe."""
