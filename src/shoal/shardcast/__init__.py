"""New weights everywhere: signed versions, passed on piece by piece through relays that nobody has to trust.

A store is a directory (`store`); a publisher (`publish`, `versions`) or a puller (`pull`) fills it, a server (`server`)
hands it out. An origin is a publisher and a server, a relay a puller and a server, a client a puller.
"""
