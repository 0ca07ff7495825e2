"""Defines the configuration of identity providers outside the mesh."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OidcConfig:
    """An OpenID Connect provider whose tokens identify people."""

    issuer: str = ""
    """Address of the provider, exactly as in the claim `iss` of its tokens; empty: no provider."""
    audience: str = "podrace"
    """Audience that tokens must have: the client id of this mesh at the provider."""
    jwks_url: str = ""
    """Address of the provider's keys; empty: the address in its `/.well-known/openid-configuration`."""
    name_claim: str = "sub"
    """Claim that names the person, who owns tournaments under this name. It must never change or be given to another
    person."""
    roles_claim: str = "groups"
    """Claim whose values give roles: a string, or a list of strings."""
    roles: tuple[str, ...] = ()
    """Roles by values of that claim: `VALUE=ROLE`, for instance `ml-team=user,ml-admins=operator`. A person without a
    role is refused."""
    namespace_claim: str = ""
    """Claim with the namespace of the person; empty: the default namespace."""


@dataclass(frozen=True)
class TokenReviewConfig:
    """Tokens of a Kubernetes cluster that identify callers."""

    audience: str = ""
    """Audience that tokens must have, for instance `podrace`; empty: tokens of Kubernetes are not accepted."""
    roles: tuple[str, ...] = ()
    """Roles by user name, or by group with the prefix `group:`. For instance
    `system:serviceaccount:team-a:trainer=user,group:ml-admins=operator`. A caller without a role is refused."""
