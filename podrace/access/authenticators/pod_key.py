"""Identifies the roles of one pod to each other, across its hosts, by a secret that only they know."""

import hashlib
import hmac

from podrace.access.credentials import Credentials
from podrace.access.principal import Principal
from podrace.access.tokens import POD_PREFIX
from podrace.access.v1 import access_pb2


class PodKeyAuthenticator:
    """Recognizes the other roles of a pod by a key that is valid only for this pod; see Authenticator."""

    def __init__(self, key: str, pod_id: str) -> None:
        """Creates the authenticator.

        Args:
            key: The key of the pod; not empty.
            pod_id: The pod.
        """
        self._digest = hashlib.sha256(key.encode()).digest()
        roles = frozenset({access_pb2.ROLE_POD_ROLE})
        self._role = Principal(f"{POD_PREFIX}{pod_id}", roles, pod_id=pod_id, via="token")

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns a role of the pod if the token is the key."""
        presented = hashlib.sha256(credentials.token.encode()).digest()
        return self._role if hmac.compare_digest(presented, self._digest) else None
