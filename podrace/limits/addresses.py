"""Decides which network addresses are never connected to on behalf of a specification. Pure.

Cloud machines answer at link-local addresses with their credentials. Such an address may be written out, be the answer
of DNS, or be the target of a redirect.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA = tuple(
    map(
        ipaddress.ip_network,
        (
            "169.254.0.0/16",  # link-local: 169.254.169.254 of most clouds, 169.254.170.2 of containers
            "fe80::/10",  # link-local
            "fd00:ec2::/32",  # Amazon, by IPv6
            "fd20:ce::/32",  # Google, by IPv6
            "100.100.100.200/32",  # Alibaba
            "168.63.129.16/32",  # Azure
            "192.0.0.192/32",  # Oracle
        ),
    )
)
"""Addresses at which machines of clouds learn their credentials, and link-local addresses in general."""
METADATA_NAMES = ("metadata", "metadata.google.internal", "metadata.goog", "instance-data")
_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
"""IPv6 networks whose last 32 bits are an IPv4 address."""


def parse_address(host: str) -> Address | None:
    """Returns the address that a host is, without brackets; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


def is_metadata(host: str) -> bool:
    """Whether a host name or an address is one that machines of clouds learn their credentials from."""
    address = parse_address(host)
    if address is None:
        return host.rstrip(".").lower() in METADATA_NAMES
    return any(one in network for one in _meant(address) for network in METADATA if one.version == network.version)


def is_local(address: Address) -> bool:
    """Whether an address belongs to this machine, or to none."""
    return any(one.is_loopback or one.is_unspecified or one.is_multicast for one in _meant(address))


def _meant(address: Address) -> list[Address]:
    """Returns an address and the IPv4 addresses that it contains."""
    meant: list[Address] = [address]
    if isinstance(address, ipaddress.IPv6Address):
        meant += [one for one in (address.ipv4_mapped, address.sixtofour) if one is not None]
        if any(address in network for network in _TRANSLATED):
            meant.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return meant
