"""The swarm: who somebody is, what a node may do, and the coordinator that hands out work. Nothing here knows torch."""
