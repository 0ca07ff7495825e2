"""Tokens that need no verification: those that were verified, and those that this service has issued itself."""

import pytest

from podrace.access import known_tokens
from podrace.access.credentials import Credentials
from podrace.access.guard import Guard
from podrace.access.known_tokens import KnownTokens
from podrace.access.mesh_key import MeshKey, make_pem
from podrace.access.principal import Principal
from podrace.access.rules import rule_of
from podrace.access.tokens import PodTokens, pod_token, principal_of
from podrace.errors import Unauthenticated

RULE = rule_of("/podrace.orchestrator.v1.OrchestratorService/AcquireAssignment")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_the_issuer_of_a_token_verifies_no_signature_and_still_lets_it_expire():
    clock, known = Clock(), KnownTokens()
    key = MeshKey(make_pem(), clock)
    tokens = PodTokens(key, clock, known)
    # Without an authenticator, only what is known gets in.
    guard = Guard([], known=known, now=clock)
    token = tokens.first("t-p1", "t", 900.0)
    principal = await guard.authenticate(Credentials(token), RULE)
    assert principal == principal_of(key.public.verify(token, audience="podrace"))
    for other in (pod_token(key, "t-p2", "t", 1900.0), token + "x", token[:-1]):
        with pytest.raises(Unauthenticated):
            await guard.authenticate(Credentials(other), RULE)
    clock.now = 1600.0
    renewed = tokens.renewed(principal)
    assert (await guard.authenticate(Credentials(renewed), RULE)).pod_id == "t-p1"
    clock.now = 1900.0
    with pytest.raises(Unauthenticated):
        await guard.authenticate(Credentials(token), RULE)


def test_a_token_is_forgotten_when_it_expires_or_others_need_its_place(monkeypatch):
    monkeypatch.setattr(known_tokens, "MOST_TOKENS", 2)
    known, holder = KnownTokens(), Principal("alice", frozenset(), expire_time=50.0)
    known.keep("a", holder, 100.0)
    assert (known.find("a", 49.0), known.find("a", 50.0), known.find("a", 49.0)) == (holder, None, None)
    for name in ("a", "b", "c"):
        known.keep(name, holder, 100.0)
    assert [known.find(name, 0.0) for name in ("a", "b", "c")] == [None, holder, holder]
