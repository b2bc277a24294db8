"""A node's side of the coordinator: signed requests, leases and uploads, versions, votes, credits."""
