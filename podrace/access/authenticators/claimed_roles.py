"""Maps the claims of an identity provider about a person to roles, as the operator has configured: `VALUE=ROLE`."""

from collections.abc import Collection, Mapping, Sequence

from podrace.access.principal import ROLES_BY_NAME, roles_with_included
from podrace.config import unknown
from podrace.errors import InvalidArgument


def parse_roles(key: str, entries: Sequence[str]) -> Mapping[str, int]:
    """Reads entries `VALUE=ROLE`; a value may have equals signs.

    Args:
        key: Key of the configuration, for messages.
        entries: The entries.

    Raises:
        InvalidArgument: An entry is malformed, or its role does not exist.
    """
    found = {}
    for entry in entries:
        value, equals, role = entry.rpartition("=")
        if not equals or not value:
            raise InvalidArgument(f"{key} = {entry!r}: expected VALUE=ROLE, for instance ml-team=user")
        if role not in ROLES_BY_NAME:
            raise InvalidArgument(unknown(f"{key} = {entry!r}", "role", role, ROLES_BY_NAME))
        found[value] = ROLES_BY_NAME[role]
    return found


def roles_of(values: Collection[str], roles: Mapping[str, int]) -> frozenset[int]:
    """Returns the roles that these values give; empty if none is configured."""
    return roles_with_included(roles[value] for value in values if value in roles)
