"""Tokens: who can read what was signed, until when, and who its holder is."""

import dataclasses

import jwt
import pytest

from podrace.access.audit import AuditLog
from podrace.access.mesh_key import MeshKey, PublicKeys, make_pem
from podrace.access.service_access import ServiceAccess
from podrace.access.tokens import (
    AUDIENCE,
    LAST_PUBLICATION_SECONDS,
    POD_TOKEN_SECONDS,
    PodTokens,
    ServiceToken,
    claims_of,
    outlasting_silence,
    pod_token,
    principal_of,
)
from podrace.access.v1 import access_pb2
from podrace.errors import FailedPrecondition, Unauthenticated

NOW = 1_800_000_000.0
USER = frozenset({access_pb2.ROLE_USER})


@pytest.fixture(scope="module")
def key() -> MeshKey:
    return MeshKey(make_pem(), lambda: NOW)


def token(key: MeshKey, *, expire_time: float = NOW + 60.0, audience: str = AUDIENCE, **fields) -> str:
    return key.sign(claims_of("alice", USER, expire_time=expire_time, audience=audience, **fields))


def test_a_token_names_its_holder(key):
    found = principal_of(key.public.verify(token(key, namespace="team"), audience=AUDIENCE))
    assert (found.name, found.namespace, found.via, found.expire_time) == ("alice", "team", "token", NOW + 60.0)
    assert found.roles == {access_pb2.ROLE_USER, access_pb2.ROLE_VIEWER}


def test_the_token_of_a_pod_is_bound_to_pod_and_tournament(key):
    signed = pod_token(key, "t-p1", "t", NOW + 60.0)
    found = principal_of(key.public.verify(signed, audience=AUDIENCE))
    assert (found.pod_id, found.tournament_id) == ("t-p1", "t")
    assert found.roles == {access_pb2.ROLE_POD_LEADER}


@pytest.mark.parametrize("orphan_seconds", [60.0, 1800.0, 86_400.0])
def test_the_token_of_a_pod_outlasts_the_time_for_which_it_works_without_an_answer(key, orphan_seconds):
    """At worst, the orchestrator stops answering just before it would renew the token."""
    clock, lifetime = iter([NOW, NOW, NOW + 1.0]), outlasting_silence(POD_TOKEN_SECONDS, orphan_seconds)
    tokens = PodTokens(key, lambda: next(clock), lifetime_seconds=lifetime)
    signed = tokens.first("t-p1", "t")
    principal = principal_of(key.public.verify(signed, audience=AUDIENCE))
    silent_from = dataclasses.replace(principal, expire_time=NOW + lifetime / 2 + 0.5)
    assert principal.expire_time == NOW + lifetime
    assert tokens.renewed(silent_from) == ""
    assert silent_from.expire_time - NOW > orphan_seconds + LAST_PUBLICATION_SECONDS
    assert tokens.renewed(silent_from) != ""


def test_the_tokens_that_a_service_makes_depend_on_how_long_pods_work_without_it(key):
    own = ServiceToken(key, access_pb2.ROLE_ORCHESTRATOR)
    access = ServiceAccess(key, own, [], AuditLog(), orphan_seconds=1800.0)
    assert (access.pod_tokens._lifetime_seconds, access.lease_tokens._lifetime_seconds) == (4200.0, 4200.0)
    assert (ServiceAccess(key, own, [], AuditLog()).pod_tokens._lifetime_seconds) == POD_TOKEN_SECONDS


def test_an_expired_token_is_refused(key):
    with pytest.raises(Unauthenticated, match="has expired"):
        key.public.verify(token(key, expire_time=NOW - 60.0), audience=AUDIENCE)


def test_a_token_for_another_audience_is_refused(key):
    with pytest.raises(Unauthenticated, match=r"[Aa]udience"):
        key.public.verify(token(key, audience="grpc://elsewhere:1"), audience=AUDIENCE)


def test_a_token_of_another_key_is_refused(key):
    other = MeshKey(make_pem(), lambda: NOW)
    assert not key.public.have_signed(token(other))
    with pytest.raises(Unauthenticated, match="not signed by the key of this mesh"):
        key.public.verify(token(other), audience=AUDIENCE)
    # With the id of this key, but the signature of another one.
    forged = jwt.encode(
        {"iss": "podrace", **claims_of("eve", USER, expire_time=NOW + 60.0)},
        other._key,
        algorithm="EdDSA",
        headers={"kid": key.public.first_id},
    )
    with pytest.raises(Unauthenticated, match="not valid here"):
        key.public.verify(forged, audience=AUDIENCE)


@pytest.mark.parametrize("algorithm", ["HS256", "none"])
def test_a_token_of_another_algorithm_is_refused(key, algorithm):
    claims = {"iss": "podrace", **claims_of("eve", USER, expire_time=NOW + 60.0)}
    secret = None if algorithm == "none" else "x" * 32
    forged = jwt.encode(claims, secret, algorithm=algorithm, headers={"kid": key.public.first_id})
    with pytest.raises(Unauthenticated, match="not valid here"):
        key.public.verify(forged, audience=AUDIENCE)


@pytest.mark.parametrize("missing", ["aud", "sub", "exp"])
def test_a_token_without_a_claim_that_is_needed_is_refused(key, missing):
    claims = claims_of("alice", USER, expire_time=NOW + 60.0)
    del claims[missing]
    with pytest.raises(Unauthenticated, match="not valid here"):
        key.public.verify(key.sign(claims), audience=AUDIENCE)


@pytest.mark.parametrize("text", ["", "a", "a.b", "a.b.c", "\0", "é.é.é", "." * 100_000])
def test_text_that_is_no_token_is_refused(key, text):
    assert not key.public.have_signed(text)


def test_a_token_with_an_unknown_role_is_refused():
    with pytest.raises(Unauthenticated, match="unknown roles"):
        principal_of({"sub": "alice", "exp": NOW, "roles": ["emperor"]})


def test_the_role_of_a_pod_needs_a_pod():
    with pytest.raises(Unauthenticated, match="names no pod"):
        principal_of({"sub": "alice", "exp": NOW, "roles": ["pod-leader"]})


def test_while_keys_are_replaced_both_are_accepted(key):
    old, new = key, MeshKey(make_pem(), lambda: NOW)
    both = PublicKeys([*new.public.pems, *old.public.pems], lambda: NOW)
    for each in (old, new):
        assert both.verify(token(each), audience=AUDIENCE)["sub"] == "alice"


def test_the_token_of_a_service_is_renewed_before_it_expires(key):
    now = [NOW]
    source = ServiceToken(key, access_pb2.ROLE_ORCHESTRATOR, lambda: now[0])
    first = source()
    now[0] += 100.0
    assert source() == first
    now[0] += 250.0
    assert source() != first
    found = principal_of(key.public.verify(source(), audience=AUDIENCE))
    assert (found.name, found.roles) == ("orchestrator", {access_pb2.ROLE_ORCHESTRATOR})


def test_the_key_is_made_once_and_readable_by_its_user_only(tmp_path):
    path = tmp_path / "new" / "mesh.key"
    made, read = MeshKey.load_or_make(path), MeshKey.load_or_make(path)
    assert made.public.pems == read.public.pems
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_key_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "mesh.key"
    MeshKey.load_or_make(path)
    path.chmod(0o644)
    with pytest.raises(FailedPrecondition, match=r"other users can read it \(mode 0644\); chmod 600"):
        MeshKey.load_or_make(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key_is_refused(tmp_path, content):
    path = tmp_path / "mesh.key"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(FailedPrecondition, match="expected an Ed25519 private key"):
        MeshKey.load_or_make(path)
    with pytest.raises(FailedPrecondition, match="expected an Ed25519 public key"):
        PublicKeys.load([path])
