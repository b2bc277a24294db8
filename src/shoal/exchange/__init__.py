"""How the roles meet: two small interfaces, and directories as their first implementation."""
