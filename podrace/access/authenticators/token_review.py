"""Identifies callers by Kubernetes tokens: the API server of the cluster identifies their holders (TokenReview).

Only tokens whose audience is this mesh are sent to the API server.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import jwt

from podrace.access.authenticators.claimed_roles import parse_roles, roles_of
from podrace.access.credentials import Credentials
from podrace.access.principal import Principal
from podrace.access.provider_config import TokenReviewConfig
from podrace.errors import FailedPrecondition, Unauthenticated, Unavailable

REVIEWS_AT_ONCE = 8
REVIEW_SECONDS = 5.0
KEPT_SECONDS = 60.0
"""A token is reviewed again after this time: its holder may have been deleted."""
SERVICE_ACCOUNT = "system:serviceaccount:"
GROUP = "group:"


class ReviewApi(Protocol):
    """The part of kubernetes.client.AuthenticationV1Api that is used."""

    def create_token_review(self, body: Any, *, _request_timeout: float) -> Any:
        """Asks the API server who the holder of a token is."""
        ...


class TokenReviewAuthenticator:
    """Asks the API server about tokens of its audience; see Authenticator."""

    def __init__(
        self, config: TokenReviewConfig, *, api: ReviewApi | None = None, now: Callable[[], float] = time.time
    ) -> None:
        """Creates the authenticator.

        Args:
            config: Audience and roles.
            api: The API server; None: that of the cluster in which this process runs, or of the kube context.
            now: Returns the seconds since 1970.

        Raises:
            InvalidArgument: A role does not exist.
            FailedPrecondition: There is no cluster, or the package `kubernetes` is not installed.
        """
        self._roles = parse_roles("access.kubernetes.roles", config.roles)
        self._audience, self._now = config.audience, now
        self._api = api or cluster_api()
        self._slots = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns the user or service account that a token of this audience belongs to; None for other tokens.

        Raises:
            Unauthenticated: The API server does not accept the token, or its holder has no role.
            Unavailable: The API server does not review tokens.
        """
        claims = _claims_of(credentials.token)
        if self._audience not in _audiences_of(claims):
            return None
        status = await self._review(credentials.token)
        if not status.authenticated or self._audience not in (status.audiences or ()):
            reason = " ".join(str(status.error or "it has expired or was issued by another cluster").split())
            raise Unauthenticated(f"the token is not accepted by the Kubernetes API server: {reason}")
        return self._principal(status.user, claims)

    async def _review(self, token: str) -> Any:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        async with self._slots:
            try:
                answer = await asyncio.to_thread(self._api.create_token_review, body, _request_timeout=REVIEW_SECONDS)
            except Exception as error:
                # The client raises errors of several libraries; none of them may quote the token to the caller.
                status = getattr(error, "status", None)
                hint = "; it needs the right to create tokenreviews (component token-review)" if status == 403 else ""
                raise Unavailable(
                    f"the Kubernetes API server does not review tokens ({type(error).__name__}){hint}"
                ) from None
        return answer.status

    def _principal(self, user: Any, claims: dict[str, Any]) -> Principal:
        name = str(user.username)
        roles = roles_of([name, *(f"{GROUP}{group}" for group in user.groups or ())], self._roles)
        if not roles:
            raise Unauthenticated(
                f"{name} has no role here: neither it nor one of its groups is in access.kubernetes.roles"
            )
        namespace = name.removeprefix(SERVICE_ACCOUNT).partition(":")[0] if name.startswith(SERVICE_ACCOUNT) else ""
        expire_time = min(float(claims.get("exp", float("inf"))), self._now() + KEPT_SECONDS)
        return Principal(name, roles, namespace=namespace, via="kubernetes", expire_time=expire_time)


def _claims_of(token: str) -> dict[str, Any]:
    """Returns the unverified claims of a token; empty if this is not a JSON Web Token."""
    try:
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError:
        return {}
    return claims


def _audiences_of(claims: dict[str, Any]) -> list[Any]:
    """Returns the unverified audiences of a token; none if the claim is neither a name nor a list."""
    found = claims.get("aud")
    if isinstance(found, str):
        return [found]
    return found if isinstance(found, list) else []


def cluster_api() -> ReviewApi:
    """Returns the API server of the cluster in which this process runs, or of the kube context.

    Raises:
        FailedPrecondition: There is none, or the package `kubernetes` is not installed.
    """
    try:
        from kubernetes import client
        from kubernetes import config as untyped
    except ImportError:
        raise FailedPrecondition(
            "access.kubernetes.audience is set, but the package kubernetes is not installed: pip install kubernetes"
        ) from None
    config: Any = untyped
    configuration = client.Configuration()
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(configuration)
        else:
            config.load_kube_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise FailedPrecondition(f"access.kubernetes.audience is set, but there is no cluster: {error}") from None
    api: ReviewApi = client.AuthenticationV1Api(client.ApiClient(configuration))
    return api
