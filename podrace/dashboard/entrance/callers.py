"""Shows who a caller is by the answer of the mesh. Pure."""

from typing import Any

from podrace.access.principal import ALL_ROLES, role_name
from podrace.dashboard import views
from podrace.discovery.v1.discovery_pb2 import GetCallerResponse

MOST_ROLES = 20


def caller(answer: GetCallerResponse) -> dict[str, Any]:
    """Shape of a caller; roles that this version does not know are left out."""
    return {
        "name": views.text(answer.name),
        "namespace": views.text(answer.namespace),
        "roles": [role_name(role) for role in answer.roles[:MOST_ROLES] if role in ALL_ROLES],
        "tournament_id": views.text(answer.tournament_id),
        "expire_time": views.seconds(answer.expire_time) if answer.HasField("expire_time") else None,
    }
