"""Which host names mean this machine alone."""

import ipaddress


def is_loopback_name(host: str) -> bool:
    """Whether a Host header names this machine's loopback, with any port."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return name.strip("[]").lower() == "localhost" or is_loopback(name.strip("[]"))


def is_loopback(host: str) -> bool:
    """Whether an address is one of loopback's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
