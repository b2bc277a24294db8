"""Policy versions to everyone: signed, in pieces, as deltas where they are smaller."""
