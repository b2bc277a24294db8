"""The origin: publishes versions and signs them."""
