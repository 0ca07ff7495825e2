"""A caller has the role of its certificate, until the certificate expires or is revoked."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from podrace.access.authenticators.certificate import PEM, CertificateAuthenticator
from podrace.access.credentials import Credentials
from podrace.access.guard import Guard
from podrace.access.principal import ROLES_BY_NAME, Principal
from podrace.access.rules import Rule
from podrace.certificates.folder import CertificateFolder
from podrace.certificates.issuing import issue, issue_authority
from podrace.certificates.names import PEOPLE, ROLES, SpiffeName
from podrace.errors import Unauthenticated

NOW = datetime(2026, 6, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
AUTHORITY = issue_authority("podrace", NOW, YEAR)


def presented(name: SpiffeName, token: str = "") -> Credentials:
    pem = issue(AUTHORITY, name, ["localhost"], NOW, YEAR).certificate_pem
    return Credentials(token, "ipv4:10.0.0.9:1", {PEM: [pem]})


def authenticator(now: datetime = NOW, **options: object) -> CertificateAuthenticator:
    return CertificateAuthenticator(now=now.timestamp, **options)  # type: ignore[arg-type]


def test_every_role_of_a_certificate_is_a_role_of_the_contract() -> None:
    assert set(ROLES) <= ROLES_BY_NAME.keys()


@pytest.mark.parametrize("role", ROLES)
async def test_a_caller_has_the_role_of_its_certificate_and_those_that_it_includes(role: str) -> None:
    principal = await authenticator().authenticate(presented(SpiffeName(role, "x", "vision")))
    assert principal is not None
    included = {"operator": {"user", "viewer"}, "user": {"viewer"}, "policy-server": {"viewer"}}.get(role, set())
    assert principal.roles == {ROLES_BY_NAME[each] for each in {role, *included}}
    assert (principal.via, principal.namespace) == ("certificate", "vision")
    assert principal.pod_id == ("x" if role.startswith("pod-") else "")
    assert principal.name == ("x" if role in PEOPLE else "pod/x" if role.startswith("pod-") else f"{role}/x")


async def test_a_connection_without_a_certificate_is_left_to_others() -> None:
    assert await authenticator().authenticate(Credentials("", "ipv4:10.0.0.9:1", {})) is None


async def test_a_token_counts_instead_of_the_certificate() -> None:
    assert await authenticator().authenticate(presented(SpiffeName("operator", "root"), token="t")) is None


async def test_a_certificate_that_expires_during_a_connection_is_refused() -> None:
    credentials = presented(SpiffeName("user", "alice"))
    with pytest.raises(Unauthenticated, match="certificate of alice has expired; renew it"):
        await authenticator(NOW + YEAR).authenticate(credentials)


async def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    folder = CertificateFolder.create(tmp_path / "certs", NOW)
    serial = folder.add(SpiffeName("user", "alice"), [], NOW, YEAR).serial
    credentials = Credentials("", "", {PEM: [(folder.path / "user/alice/tls.crt").read_bytes()]})
    revoked: set[int] = set()
    checking = authenticator(revoked=revoked)
    await checking.authenticate(credentials)
    revoked.add(serial)
    with pytest.raises(Unauthenticated, match="certificate of alice was revoked"):
        await checking.authenticate(credentials)


async def test_a_token_that_is_known_does_not_help_a_revoked_certificate() -> None:
    """A guard accepted the token for 300 s without looking at the certificate of the connection."""

    class Tokens:
        async def authenticate(self, credentials: Credentials) -> Principal | None:
            return Principal("pod/p", frozenset({ROLES_BY_NAME["pod-leader"]}))

    revoked: set[int] = set()
    guard = Guard([Tokens(), authenticator(revoked=revoked)])
    rule = Rule("Method", frozenset({ROLES_BY_NAME["pod-leader"]}))
    credentials = presented(SpiffeName("pod-role", "p"), token="t")
    await guard.authenticate(credentials, rule)
    serial = x509.load_pem_x509_certificate(credentials.transport[PEM][0]).serial_number  # type: ignore[index]
    revoked.add(serial)
    with pytest.raises(Unauthenticated, match="certificate of this connection was revoked"):
        await guard.authenticate(credentials, rule)
    # Without a certificate, as on the address for callers with a token alone.
    await guard.authenticate(Credentials("t"), rule)


async def test_a_name_of_another_trust_domain_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="expected spiffe://podrace/ROLE/NAME"):
        await authenticator().authenticate(presented(SpiffeName("operator", "root", "", "elsewhere")))
    accepted = authenticator(trust_domain="elsewhere")
    assert await accepted.authenticate(presented(SpiffeName("operator", "root", "", "elsewhere"))) is not None


async def test_a_certificate_without_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import trustme

    leaf = trustme.CA().issue_cert("podrace-orchestrator")
    credentials = Credentials("", "", {PEM: [leaf.cert_chain_pems[0].bytes()]})
    with pytest.raises(Unauthenticated, match=r"has 0 URIs.*podrace certs"):
        await authenticator().authenticate(credentials)
