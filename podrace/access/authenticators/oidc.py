"""Identifies people by tokens of an OpenID Connect provider that the operator has named.

The provider's public keys come from its key set (JWKS), which is read again when a token names an unknown key, and
regularly, so that a key that the provider withdraws is no longer accepted. The addresses come from the configuration
only, never from a token.
"""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import jwt
import structlog

from podrace.access.authenticators.claimed_roles import parse_roles, roles_of
from podrace.access.credentials import Credentials
from podrace.access.ownership import EVERY_NAMESPACE
from podrace.access.principal import Principal
from podrace.access.provider_config import OidcConfig
from podrace.access.sending import is_loopback
from podrace.errors import InvalidArgument, Unauthenticated, Unavailable

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric signatures only: with a shared secret, every verifier could also sign."""
LEEWAY_SECONDS = 30.0
"""Tolerated difference between the clocks of this machine and of the provider."""
REFRESH_SECONDS = 300.0
"""Keys are read again after this time."""
PAUSE_SECONDS = 5.0
"""Shortest time between two reads of the keys, so that tokens with invented key ids do not cause a call each."""
FETCH_SECONDS = 5.0
LONGEST_BYTES = 1 << 20

_log = structlog.get_logger(__name__)
Fetch = Callable[[str], Mapping[str, Any]]
"""Reads a JSON object from an address; raises Unavailable."""


class OidcAuthenticator:
    """Accepts tokens of one provider; see Authenticator."""

    def __init__(self, config: OidcConfig, *, fetch: Fetch | None = None, now: Callable[[], float] = time.time) -> None:
        """Creates the authenticator; it reads the keys with the first token.

        Args:
            config: The provider.
            fetch: Reads an address; None: over HTTPS.
            now: Returns the seconds since 1970.

        Raises:
            InvalidArgument: An address is not HTTPS, or a role does not exist.
        """
        for key, url in (("issuer", config.issuer), ("jwks_url", config.jwks_url)):
            if url:
                _check_url(f"access.oidc.{key}", url)
        self._roles = parse_roles("access.oidc.roles", config.roles)
        self._config, self._fetch, self._now = config, fetch or fetch_json, now
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_time = -float("inf")
        self._reading = asyncio.Lock()

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns the person that a token of this provider names; None for other tokens.

        Raises:
            Unauthenticated: The token is invalid, has expired, is meant for another audience, or gives no role.
            Unavailable: The keys of the provider cannot be read.
        """
        token = credentials.token
        if not token or _issuer_of(token) != self._config.issuer:
            return None
        claims = self._verified(token, await self._key_of(token))
        return self._principal(claims)

    def _verified(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._config.audience,
                issuer=self._config.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired; get another one from your identity provider") from None
        except jwt.InvalidAudienceError:
            raise Unauthenticated(
                f"the token is not meant for this mesh; get one with the audience {self._config.audience!r}"
            ) from None
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated(f"the token of {self._config.issuer} is invalid: {error}") from None
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        config = self._config
        name = claims.get(config.name_claim)
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 256:
            raise Unauthenticated(f"the token has no claim {config.name_claim!r} that names a person")
        values = claims.get(config.roles_claim) or []
        values = [values] if isinstance(values, str) else values
        roles = roles_of([each for each in values if isinstance(each, str)], self._roles)
        if not roles:
            raise Unauthenticated(
                f"{name} has no role here: none of the values of {config.roles_claim!r} in the token is in"
                " access.oidc.roles"
            )
        namespace = claims.get(config.namespace_claim, "") if config.namespace_claim else ""
        if not isinstance(namespace, str) or not (namespace.isprintable() and len(namespace) <= 256):
            raise Unauthenticated(f"the claim {config.namespace_claim!r} of the token is not a short string")
        if namespace == EVERY_NAMESPACE:
            raise Unauthenticated(f"the claim {config.namespace_claim!r} of the token may not be {EVERY_NAMESPACE!r}")
        return Principal(name, roles, namespace=namespace, via="oidc", expire_time=float(claims["exp"]))

    async def _key_of(self, token: str) -> jwt.PyJWK:
        id = str(jwt.get_unverified_header(token).get("kid", ""))
        age_seconds = self._now() - self._read_time
        if age_seconds >= REFRESH_SECONDS or (id not in self._keys and age_seconds >= PAUSE_SECONDS):
            async with self._reading:
                # Another call may have read the keys while this one waited for the lock.
                if self._now() - self._read_time >= PAUSE_SECONDS:
                    await self._read_keys()
        try:
            return self._keys[id]
        except KeyError:
            raise Unauthenticated(f"the token is signed by a key that {self._config.issuer} does not publish") from None

    async def _read_keys(self) -> None:
        self._read_time = self._now()
        try:
            self._keys = await asyncio.to_thread(self._fetched_keys)
        except (Unavailable, InvalidArgument) as error:
            _log.warning("the keys of the identity provider cannot be read", error=error.message)
            if not self._keys:
                raise Unavailable(error.message) from None

    def _fetched_keys(self) -> dict[str, jwt.PyJWK]:
        url = self._config.jwks_url
        if not url:
            document = self._fetch(self._config.issuer.rstrip("/") + "/.well-known/openid-configuration")
            if document.get("issuer") != self._config.issuer:
                raise Unavailable(f"{self._config.issuer}: its configuration names another issuer")
            url = str(document.get("jwks_uri", ""))
            _check_url(f"jwks_uri of {self._config.issuer}", url)
        try:
            found = jwt.PyJWKSet.from_dict(dict(self._fetch(url))).keys
        except jwt.PyJWTError as error:
            raise Unavailable(f"{url}: is not a set of keys: {error}") from None
        return {key.key_id or "": key for key in found if key.public_key_use in (None, "sig")}


def _issuer_of(token: str) -> str:
    """Returns the unverified claim `iss`; empty if this is not a JSON Web Token."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError:
        return ""
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else ""


def _check_url(key: str, url: str) -> None:
    parts = urlsplit(url)
    local = parts.scheme == "http" and is_loopback(parts.netloc)
    if not local and (parts.scheme != "https" or not parts.hostname):
        raise InvalidArgument(f"{key} = {url!r}: expected https://HOST/...")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


def fetch_json(url: str) -> Mapping[str, Any]:
    """Reads a JSON object over HTTPS without following redirects.

    Raises:
        Unavailable: It cannot be read, is too large, or is not a JSON object.
    """
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(
            urllib.request.Request(url, headers={"Accept": "application/json"}), timeout=FETCH_SECONDS
        ) as answer:
            content = answer.read(LONGEST_BYTES + 1)
        found = json.loads(content) if len(content) <= LONGEST_BYTES else None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{url}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise Unavailable(f"{url}: is not a JSON object of at most {LONGEST_BYTES} bytes")
    return found
