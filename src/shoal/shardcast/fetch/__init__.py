"""Clients and relays: choose sources, download pieces, check them, and put packages together."""
