"""Keys, signatures and TLS."""
