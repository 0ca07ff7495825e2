"""Tokens of an identity provider identify people; expired, foreign, forged and withdrawn ones are refused."""

import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from identity_provider import IdentityProvider

from podrace.access.authenticators.oidc import PAUSE_SECONDS, REFRESH_SECONDS, OidcAuthenticator
from podrace.access.credentials import Credentials
from podrace.access.principal import ROLES_BY_NAME, Principal
from podrace.access.provider_config import OidcConfig
from podrace.errors import InvalidArgument, Unauthenticated, Unavailable

KEYS = "/keys"


class Clock:
    def __init__(self) -> None:
        # Signatures are checked against the clock of the machine; only the reading of keys uses this one.
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def served() -> Iterator[IdentityProvider]:
    with IdentityProvider() as provider:
        yield provider


@pytest.fixture
def provider(served: IdentityProvider) -> IdentityProvider:
    served.published, served.fails, served.redirect = ["first"], False, ""
    served.requests.clear()
    return served


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authenticator(provider: IdentityProvider, clock: Clock) -> OidcAuthenticator:
    return made(provider, clock)


def made(provider: IdentityProvider, clock: Clock, **changes: Any) -> OidcAuthenticator:
    settings = {"issuer": provider.issuer, "roles": ("ml-team=user", "ml-admins=operator"), **changes}
    return OidcAuthenticator(OidcConfig(**settings), now=clock)


async def answer(authenticator: OidcAuthenticator, token: str) -> Principal | None:
    return await authenticator.authenticate(Credentials(token, "ipv4:10.0.0.9:1"))


async def test_a_person_has_the_roles_of_its_groups(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    alice = await answer(authenticator, provider.token(clock.now, groups=["guests", "ml-team"]))
    assert alice is not None
    assert (alice.name, alice.via, alice.namespace) == ("alice", "oidc", "")
    assert alice.roles == {ROLES_BY_NAME["user"], ROLES_BY_NAME["viewer"]}
    assert alice.expire_time == pytest.approx(clock.now + 600)
    admin = await answer(authenticator, provider.token(clock.now, sub="root", groups="ml-admins"))
    assert admin is not None
    assert ROLES_BY_NAME["operator"] in admin.roles


async def test_name_and_namespace_come_from_the_claims_that_are_configured(
    provider: IdentityProvider, clock: Clock
) -> None:
    configured = made(provider, clock, name_claim="email", namespace_claim="team", roles_claim="https://x/roles")
    token = provider.token(
        clock.now, email="alice@example.org", team="vision", **{"https://x/roles": ["ml-team"], "groups": None}
    )
    alice = await answer(configured, token)
    assert alice is not None
    assert (alice.name, alice.namespace) == ("alice@example.org", "vision")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exp": 1}, "has expired"),
        ({"exp": None}, '"exp"'),
        ({"aud": "another-service"}, "not meant for this mesh.*audience 'podrace'"),
        ({"aud": None}, '"aud"|not meant'),
        ({"nbf": 99999999999}, "not yet valid"),
        ({"groups": ["guests"]}, "alice has no role here"),
        ({"groups": None}, "alice has no role here"),
        ({"groups": {"ml-team": 1}}, "alice|role"),
        ({"sub": ""}, "no claim 'sub'"),
        ({"sub": "a\nb"}, "no claim 'sub'"),
    ],
)
async def test_a_token_that_is_not_valid_here_is_refused(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock, changes: dict[str, Any], message: str
) -> None:
    if changes.get("groups") == {"ml-team": 1}:
        # An object is read as its keys: it must not be a way to another role than its names give.
        changes = {"groups": {"guests": "ml-team"}}
    with pytest.raises(Unauthenticated, match=message):
        await answer(authenticator, provider.token(clock.now, **changes))


async def test_tokens_of_other_issuers_are_left_to_others_and_nothing_is_fetched(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    for token in (provider.token(clock.now, iss="http://127.0.0.1:1"), "", "opaque", "a.b.c"):
        assert await answer(authenticator, token) is None
    assert not provider.requests


async def test_a_token_of_an_unknown_key_is_refused(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    provider.rotate("secret", keep=True)
    provider.published.remove("secret")
    with pytest.raises(Unauthenticated, match="does not publish"):
        await answer(authenticator, provider.token(clock.now, key="secret"))


async def test_a_forged_token_with_the_id_of_a_known_key_is_refused(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    with IdentityProvider() as forger:
        forger.issuer = provider.issuer
        with pytest.raises(Unauthenticated, match="Signature verification failed"):
            await answer(authenticator, forger.token(clock.now, key="first"))


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_a_token_that_is_not_signed_by_a_private_key_is_refused(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock, algorithm: str
) -> None:
    claims = jwt.decode(provider.token(clock.now), options={"verify_signature": False})
    # Everyone knows the public key: it must not count as a secret that only the provider has.
    secret = "" if algorithm == "none" else provider.key_set()["keys"][0]["n"]
    token = jwt.encode(claims, secret, algorithm=algorithm, headers={"kid": "first"})
    with pytest.raises(Unauthenticated, match="is invalid"):
        await answer(authenticator, token)


async def test_a_new_key_is_read_when_a_token_names_it(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    assert await answer(authenticator, provider.token(clock.now))
    provider.rotate("second", keep=True)
    clock.now += PAUSE_SECONDS
    assert await answer(authenticator, provider.token(clock.now, key="second"))
    assert await answer(authenticator, provider.token(clock.now, key="first"))
    assert provider.requests[KEYS] == 2


async def test_a_withdrawn_key_is_refused_once_the_keys_were_read_again(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    old = provider.token(clock.now)
    assert await answer(authenticator, old)
    provider.rotate("third", keep=False)
    clock.now += REFRESH_SECONDS
    with pytest.raises(Unauthenticated, match="does not publish"):
        await answer(authenticator, old)


async def test_invented_key_ids_do_not_cause_a_call_each(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    provider.rotate("hidden", keep=True)
    provider.published.remove("hidden")
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            await answer(authenticator, provider.token(clock.now, key="hidden"))
    assert provider.requests[KEYS] == 1


async def test_known_keys_are_used_while_the_provider_does_not_answer(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    token = provider.token(clock.now)
    assert await answer(authenticator, token)
    provider.fails = True
    clock.now += REFRESH_SECONDS
    assert await answer(authenticator, token)


async def test_a_provider_that_never_answered_makes_calls_fail_as_unavailable(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    provider.fails = True
    with pytest.raises(Unavailable, match="cannot be read"):
        await answer(authenticator, provider.token(clock.now))


async def test_a_redirect_is_not_followed(
    authenticator: OidcAuthenticator, provider: IdentityProvider, clock: Clock
) -> None:
    token = provider.token(clock.now)
    with IdentityProvider() as elsewhere:
        provider.redirect = f"{elsewhere.issuer}/.well-known/openid-configuration"
        with pytest.raises(Unavailable):
            await answer(authenticator, token)
        assert not elsewhere.requests


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"issuer": "http://id.example.org"}, "access.oidc.issuer = 'http://id.example.org': expected https"),
        ({"jwks_url": "file:///etc/passwd"}, "access.oidc.jwks_url"),
        ({"roles": ("ml-team",)}, "expected VALUE=ROLE"),
        ({"roles": ("ml-team=root",)}, "unknown role 'root'"),
    ],
)
def test_a_wrong_configuration_is_refused_at_start(
    provider: IdentityProvider, clock: Clock, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        made(provider, clock, **changes)
