"""The coordinator's HTTP side: routes, rate limits, request-size limits, the server."""
