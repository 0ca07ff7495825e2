"""Sets up how the orchestrator and the leaderboard identify their callers, and how they identify themselves.

A service whose addresses are all Unix sockets needs neither keys nor tokens: that is the embedded mesh. On one machine
the token file and the key of the mesh are made at first start. On several machines, certificates identify callers, and
a key exists only if the configuration names one.
"""

import os
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import structlog

from podrace.access.audit import AuditLog
from podrace.access.audit_file import LARGEST_BYTES, LEAST_BYTES, MOST_KEPT_FILES
from podrace.access.authenticators.anyone import AnyoneAuthenticator
from podrace.access.authenticators.signed import SignedTokenAuthenticator
from podrace.access.authenticators.token_file import StaticTokenAuthenticator
from podrace.access.authenticators.unix_socket import UnixSocketAuthenticator
from podrace.access.call_rates import CallRates
from podrace.access.credentials import Authenticator, TokenSource
from podrace.access.guard import Guard, HolderOf
from podrace.access.known_tokens import KnownTokens
from podrace.access.lease_tokens import LEASE_TOKEN_SECONDS, LeaseTokens, LeaseVerifier
from podrace.access.mesh_key import MeshKey, PublicKeys
from podrace.access.open_streams import OpenStreams
from podrace.access.ownership import Owners
from podrace.access.provider_config import OidcConfig, TokenReviewConfig
from podrace.access.sending import is_local, is_loopback
from podrace.access.token_file import MESH_KEY, load_or_make_token, token_path
from podrace.access.tokens import AUDIENCE, POD_TOKEN_SECONDS, PodTokens, ServiceToken, outlasting_silence
from podrace.errors import InvalidArgument
from podrace.tls import identity_for

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class AccessConfig:
    """Who may call a service, and how it identifies itself."""

    token_file: str = ""
    """File with the operator's token, made at first start on one machine; empty: PODRACE_TOKEN_FILE, or
    ~/.config/podrace/token."""
    mesh_key: str = ""
    """File with the private key (Ed25519, PEM) that signs the tokens of pods and services; made if it does not exist.
    Empty: `mesh.key` next to the token file if a service listens on this machine only; otherwise there is no key, and
    certificates identify callers."""
    public_keys: tuple[str, ...] = ()
    """Files with public keys (PEM) of the mesh, for a service that verifies tokens and signs none. Several while the
    key is replaced."""
    oidc: OidcConfig = field(default_factory=OidcConfig)
    """OpenID Connect provider whose tokens identify people."""
    kubernetes: TokenReviewConfig = field(default_factory=TokenReviewConfig)
    """Tokens of Kubernetes that identify callers."""
    audit_log: str = ""
    """File to which decisions about access are appended, one JSON object a line; empty: they are written to the log of
    the service."""
    audit_log_bytes: int = 67_108_864
    """Largest size of the audit log in bytes, at least 65,536: before a record would exceed it, the file is renamed to
    `FILE.1` and a new one is begun. 0: the log is not rotated."""
    audit_log_files: int = 9
    """Files of the audit log that are kept besides the current one: 1 to 1,000."""
    calls_per_second: float = 100.0
    """Calls per second of one user or viewer, after a burst of five times as many; further calls are refused. Pods,
    services and operators are not limited. 0: no limit."""
    owner_calls_per_second: Mapping[str, float] = field(default_factory=dict)
    """Other limits of this kind for single users and viewers, by name, or by `NAMESPACE/NAME`:
    `access.owner_calls_per_second.dashboard=500`."""
    open_streams: int = 250
    """Streams of one user or viewer that may be open at the same time, such as watches of tournaments; further ones are
    refused. Pods, services and operators are not limited. 0: no limit."""
    owner_open_streams: Mapping[str, float] = field(default_factory=dict)
    """Other limits of this kind for single users and viewers, by name, or by `NAMESPACE/NAME`:
    `access.owner_open_streams.dashboard=300`."""

    def __post_init__(self) -> None:
        if self.audit_log_bytes and not LEAST_BYTES <= self.audit_log_bytes <= LARGEST_BYTES:
            raise InvalidArgument(
                f"access.audit_log_bytes = {self.audit_log_bytes}: expected {LEAST_BYTES} to {LARGEST_BYTES}, or 0"
            )
        if not 1 <= self.audit_log_files <= MOST_KEPT_FILES:
            raise InvalidArgument(f"access.audit_log_files = {self.audit_log_files}: expected 1 to {MOST_KEPT_FILES}")
        limits = {f"owner_calls_per_second.{name}": value for name, value in self.owner_calls_per_second.items()}
        limits |= {f"owner_open_streams.{name}": value for name, value in self.owner_open_streams.items()}
        limits |= {"calls_per_second": self.calls_per_second, "open_streams": self.open_streams}
        for key, value in limits.items():
            if not value >= 0:
                raise InvalidArgument(f"access.{key} = {value:g}: expected 0 or more")


@dataclass(frozen=True)
class ServiceAccess:
    """How a service identifies its callers and itself.

    access = ServiceAccess.open(config.access, role, config.server.listen, config.leaderboard)
    server = await Server.start(config.server, services, guard=access.guard(holder_of))
    channel = connect(config.leaderboard, token=access.token)
    """

    key: MeshKey | None
    """Key that signs tokens; None: it signs none."""
    token: TokenSource | None
    """The token of the service itself; None: it has none."""
    authenticators: Sequence[Authenticator]
    """Who may call it."""
    audit: AuditLog
    keys: PublicKeys | None = None
    """Keys that tokens are verified with; None: no token of the mesh is known here."""
    rates: CallRates | None = None
    """Limits how many calls a person makes; None: there is no limit."""
    streams: OpenStreams | None = None
    """Limits how many streams a person has open; None: there is no limit."""
    token_file: str = ""
    """File with the token that callers on a port need; empty: callers identify themselves in another way."""
    known: KnownTokens = field(default_factory=KnownTokens)
    """Tokens that were verified, or that this service has issued to pods."""
    orphan_seconds: float = 0.0
    """How long pods work without an answer of the orchestrator; their tokens outlast that."""

    @property
    def lease_tokens(self) -> LeaseTokens:
        """Makes and checks lease tokens; none without a key."""
        lifetime_seconds = outlasting_silence(LEASE_TOKEN_SECONDS, self.orphan_seconds)
        return LeaseTokens(self.key, lifetime_seconds=lifetime_seconds)

    @property
    def lease_verifier(self) -> LeaseVerifier:
        """Verifies the tokens of leases; none are required without keys."""
        return LeaseVerifier(self.keys)

    @property
    def pod_tokens(self) -> PodTokens:
        """Makes the tokens of pods; they get none if another machine would have to verify them without the key."""
        lifetime_seconds = outlasting_silence(POD_TOKEN_SECONDS, self.orphan_seconds)
        return PodTokens(self.key if self.token else None, known=self.known, lifetime_seconds=lifetime_seconds)

    @classmethod
    def open(
        cls,
        config: AccessConfig,
        role: int,
        listen: str,
        *called: str,
        insecure: bool = False,
        audiences: Sequence[str] = (AUDIENCE,),
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Reads keys and tokens, and makes those that are missing on one machine.

        Args:
            config: The configuration.
            role: Role of the service, a value of the contract's Role.
            listen: Address that it listens on.
            called: Addresses of the services that it calls.
            insecure: Whether every caller has all roles if other machines reach the service without TLS.
            audiences: Audiences of the signed tokens that it accepts; read with each call.
            environ: Environment of the process.

        Raises:
            FailedPrecondition: A file cannot be made, read or used.
        """
        authenticators: list[Authenticator] = [UnixSocketAuthenticator()]
        token_file = ""
        audit = AuditLog.open(config.audit_log, most_bytes=config.audit_log_bytes, kept_files=config.audit_log_files)
        local = any(is_loopback(address) for address in (listen, *called) if not address.startswith("unix:"))
        configured = bool(config.mesh_key or config.public_keys)
        if local:
            path = Path(config.token_file) if config.token_file else token_path(environ)
            token = load_or_make_token(path)
            if not listen.startswith("unix:"):
                authenticators.append(StaticTokenAuthenticator(token))
                token_file = str(path)
        key, keys = None, None
        if config.mesh_key or (local and not config.public_keys):
            key = MeshKey.load_or_make(Path(config.mesh_key) if config.mesh_key else path.with_name(MESH_KEY))
        if key or configured:
            known = PublicKeys.load([Path(each) for each in config.public_keys]).pems
            keys = PublicKeys([*(key.public.pems if key else ()), *known])
            authenticators.append(SignedTokenAuthenticator(keys, audiences))
        authenticators += _providers(config)
        if identity_for(listen, environ):
            authenticators += _certificates(environ)
        elif insecure and not is_local(listen):
            # Tokens are not sent there without TLS, so no caller could identify itself.
            _log.warning("without TLS, every caller that reaches this address has all roles", address=listen)
            authenticators.append(AnyoneAuthenticator())
        # A service on another machine knows the key only if the operator has configured it there.
        known_there = bool(config.mesh_key) or all(map(is_local, called))
        own = ServiceToken(key, role) if key and known_there else None
        return cls(key, own, authenticators, audit, keys, *_limits(config), token_file)

    def guard(
        self,
        owners: Owners | None = None,
        scoped: Container[str] = (),
        holder_of: HolderOf | None = None,
        also: Sequence[Authenticator] = (),
    ) -> Guard:
        """Returns the guard of the server of the service; see Guard.

        Args:
            owners: Finds the owner of each tournament; None: the service has no tournaments.
            scoped: Methods that check themselves which tournaments the caller may see.
            holder_of: Finds the holder of an assignment.
            also: Authenticators that are tried last.
        """
        return Guard(
            [*self.authenticators, *also],
            holder_of=holder_of,
            owners=owners,
            scoped=scoped,
            audit=self.audit,
            rates=self.rates,
            streams=self.streams,
            known=self.known,
        )


def _limits(config: AccessConfig) -> tuple[CallRates, OpenStreams]:
    rates = CallRates(config.calls_per_second, config.owner_calls_per_second, time.monotonic)
    return rates, OpenStreams(config.open_streams, config.owner_open_streams)


def _providers(config: AccessConfig) -> list[Authenticator]:
    """Returns authenticators of providers outside the mesh. Their libraries are imported only if they are used."""
    found: list[Authenticator] = []
    if config.oidc.issuer:
        from podrace.access.authenticators.oidc import OidcAuthenticator

        found.append(OidcAuthenticator(config.oidc))
    if config.kubernetes.audience:
        from podrace.access.authenticators.token_review import TokenReviewAuthenticator

        found.append(TokenReviewAuthenticator(config.kubernetes))
    return found


def _certificates(environ: Mapping[str, str]) -> list[Authenticator]:
    from podrace.access.authenticators.certificate import CertificateAuthenticator

    found = CertificateAuthenticator.from_environment(environ)
    return [found] if found else []
