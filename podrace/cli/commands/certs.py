"""Implements `podrace certs`: makes, renews, revokes and lists the certificates of a development authority."""

import base64
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from podrace.certificates.names import ROLES, TRUST_DOMAIN, SpiffeName
from podrace.cli.terminal.output import notify, show, show_json
from podrace.cli.views.tables import NOTHING, plain_table
from podrace.config import unknown
from podrace.errors import InvalidArgument

HELP = """Make certificates for TLS between services, pods and people, signed by an authority of your own.

\b
podrace certs make FOLDER                      an authority, and certificates for every role
podrace certs add FOLDER user alice            one more certificate
podrace certs add FOLDER plugin scorer --host scorer.example.org
podrace certs ls FOLDER                        names, hosts and expiry
podrace certs renew FOLDER                     new certificates of the same authority
podrace certs revoke FOLDER user/alice         revoke certificates before they expire
podrace certs secrets FOLDER --namespace N     Kubernetes Secrets, for kubectl apply -f -

FOLDER/ROLE[/NAME] has tls.key, tls.crt and ca.crt for one process: PODRACE_TLS_KEY_FILE, PODRACE_TLS_CERTIFICATE_FILE
and PODRACE_TLS_AUTHORITY_FILE name them. Only you can read the files. FOLDER/authority/ca.key signs certificates; no
service needs it. Each command takes --json, except secrets, which prints JSON.
"""
SECRETS = {"orchestrator": "podrace-orchestrator-tls", "leaderboard": "podrace-leaderboard-tls"} | {
    "pod-role": "podrace-agentpod-tls",
    "policy-server": "podrace-serving-tls",
    "viewer/dashboard": "podrace-dashboard-tls",
}
"""Names of the Secrets that the Kubernetes components `tls`, `serving` and `dashboard` mount."""
OPTIONAL = {"policy-server": "serving", "viewer/dashboard": "dashboard"}
"""Certificates that older folders do not have, and the only components that mount their Secrets."""
MESH_KEY_SECRET = "podrace-mesh-key"
MESH_KEY_FILES = {"tls.key": "mesh.key", "tls.crt": "mesh.pub"}
"""Files of the Secret with the key of the mesh, named as cert-manager names them, and files of the orchestrator."""
FILES = ("tls.crt", "tls.key", "ca.crt", "ca.crl")

folder_argument = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


def days_option(days: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns the option --days."""
    return click.option(
        "--days",
        default=days,
        show_default=True,
        type=click.IntRange(1, 36_500),
        help="How long certificates are valid.",
    )


@click.group(help=HELP)
def certs() -> None:
    """The commands `podrace certs ...`."""


@certs.command(short_help="Make an authority, and certificates for every role.")
@folder_argument
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="PATH=HOST",
    help="Further DNS name or address of a certificate, for instance orchestrator=mesh.example.org; repeatable.",
)
@click.option(
    "--only", multiple=True, metavar="PATH", help="Make this certificate, and no others that are not named; repeatable."
)
@click.option(
    "--trust-domain", default=TRUST_DOMAIN, show_default=True, help="Trust domain, the first part of all names."
)
@click.option(
    "--reuse", is_flag=True, help="If there is an authority, only add what is missing and renew what expires soon."
)
@days_option(365)
@json_option
def make(
    folder: Path, hosts: Sequence[str], only: Sequence[str], trust_domain: str, reuse: bool, days: int, as_json: bool
) -> int:
    """Make an authority and certificates for every role. An existing authority is never replaced."""
    from podrace.certificates.folder import AUTHORITY, ORCHESTRATOR, STANDARD, CertificateFolder
    from podrace.certificates.issuing import host_name

    now, lifetime = datetime.now(UTC), timedelta(days=days)
    wanted = {replace(name, trust_domain=trust_domain): found for name, found in STANDARD.items()}
    further = _hosts_by_path(hosts, [name.path for name in wanted])
    if unknown_path := set(only) - {name.path for name in wanted}:
        raise InvalidArgument(unknown("--only", "certificate", min(unknown_path), [name.path for name in wanted]))
    for host in itertools.chain(*further.values()):
        host_name(host)
    exists = reuse and (folder / AUTHORITY / "ca.key").exists()
    opened = (
        CertificateFolder.open(folder) if exists else CertificateFolder.create(folder, now, trust_domain=trust_domain)
    )
    present = {found.path: found for found in opened.listed()}
    for name, standard in wanted.items():
        if only and name.path not in only:
            continue
        if name.path not in present:
            opened.add(name, [*standard, *further.get(name.path, ())], now, lifetime)
        elif present[name.path].is_due(now):
            opened.renew(name.path, now)
    if not only or ORCHESTRATOR in only:
        opened.make_mesh_key()
    return _show(opened, now, as_json=as_json)


@certs.command(short_help="Make one more certificate.")
@folder_argument
@click.argument("role", type=click.Choice(list(ROLES)))
@click.argument("name", default="")
@click.option(
    "--host", "hosts", multiple=True, metavar="HOST", help="DNS name or address where it listens; repeatable."
)
@click.option("--namespace", default="", help="Namespace of the person.")
@days_option(365)
@json_option
def add(folder: Path, role: str, name: str, hosts: Sequence[str], namespace: str, days: int, as_json: bool) -> int:
    """Make one more certificate, for a person or a service. An existing one is not replaced."""
    from podrace.certificates.folder import CertificateFolder

    opened, now = CertificateFolder.open(folder), datetime.now(UTC)
    added = opened.add(SpiffeName(role, name, namespace, opened.trust_domain), hosts, now, timedelta(days=days))
    return _show(opened, now, only=[added.path], as_json=as_json)


@certs.command(short_help="List the certificates with their expiry.")
@folder_argument
@json_option
def ls(folder: Path, as_json: bool) -> int:
    """List the certificates of a folder: names, hosts and expiry."""
    from podrace.certificates.folder import CertificateFolder

    return _show(CertificateFolder.open(folder), datetime.now(UTC), as_json=as_json)


@certs.command(short_help="Renew certificates; the authority stays.")
@folder_argument
@click.argument("paths", nargs=-1, metavar="[ROLE[/NAME]]...")
@json_option
def renew(folder: Path, paths: Sequence[str], as_json: bool) -> int:
    """Renew all certificates, or those that are named, with the same names and the same lifetime.

    The authority stays, so renewed and older certificates work with each other. Running services read the new files.
    An older certificate remains valid until it expires: if others may know its key, use `revoke --replaced`.
    """
    from podrace.certificates.folder import CertificateFolder

    opened, now = CertificateFolder.open(folder), datetime.now(UTC)
    named = list(paths) or [found.path for found in opened.listed()[1:] if not found.revoked]
    for path in named:
        opened.renew(path, now)
    return _show(opened, now, only=[path.strip("/") for path in named], as_json=as_json)


@certs.command(short_help="Revoke certificates before they expire.")
@folder_argument
@click.argument("paths", nargs=-1, required=True, metavar="ROLE[/NAME]...")
@click.option(
    "--replaced", is_flag=True, help="Revoke only those that `renew` has replaced; the present one remains valid."
)
@json_option
def revoke(folder: Path, paths: Sequence[str], replaced: bool, as_json: bool) -> int:
    """Add certificates to the list of revoked ones (ca.crl), which is copied to every subfolder.

    This includes the certificates that `renew` has replaced and that have not expired.
    Services refuse revoked certificates if PODRACE_TLS_REVOCATION_FILE names that list; they read it again when it
    changes.
    """
    from podrace.certificates.folder import CertificateFolder

    opened, now = CertificateFolder.open(folder), datetime.now(UTC)
    for path in paths:
        opened.revoke(path, now, keep_present=replaced)
    return _show(opened, now, only=[path.strip("/") for path in paths], as_json=as_json)


@certs.command(short_help="Print Kubernetes Secrets of the services and pods.")
@folder_argument
@click.option("--namespace", default="podrace", show_default=True, help="Namespace of the Secrets.")
def secrets(folder: Path, namespace: str) -> int:
    """Print the Secrets that the Kubernetes components `tls`, `serving` and `dashboard` mount, with private keys."""
    from podrace.certificates.folder import ORCHESTRATOR, CertificateFolder

    opened = CertificateFolder.open(folder)
    present, items = {found.path for found in opened.listed()}, []
    for path, name in SECRETS.items():
        if path in OPTIONAL and path not in present:
            notify(
                f"{folder}: no Secret {name}, because there is no certificate {path}; if you use the component"
                f" {OPTIONAL[path]}, make it with: podrace certs make {folder} --reuse"
            )
            continue
        opened.key_of(path)
        files = {file: folder / path / file for file in FILES}
        items.append(_secret(name, namespace, files, "kubernetes.io/tls"))
    opened.make_mesh_key()
    key = {file: folder / ORCHESTRATOR / source for file, source in MESH_KEY_FILES.items()}
    items.append(_secret(MESH_KEY_SECRET, namespace, key, "Opaque"))
    click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
    return 0


def _secret(name: str, namespace: str, files: Mapping[str, Path], kind: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {"name": name, "namespace": namespace},
        "data": {file: base64.b64encode(path.read_bytes()).decode() for file, path in files.items()},
    }


def _hosts_by_path(texts: Sequence[str], known: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        path, equals, host = text.partition("=")
        if not equals or path not in known:
            raise InvalidArgument(f"--host {text}: expected PATH=HOST, with one of {', '.join(known)}")
        found.setdefault(path, []).append(host)
    return found


def _show(opened: Any, now: datetime, *, as_json: bool, only: Sequence[str] = ()) -> int:
    listed = [found for found in opened.listed() if not only or found.path in only]
    if as_json:
        show_json([_json_of(found) for found in listed])
        return 0
    table = plain_table("certificate", "expires", "days left", "state", "hosts", right=["days left"])
    for found in listed:
        state = (
            "of another authority"
            if not found.trusted
            else "revoked"
            if found.revoked
            else "expired"
            if found.expires <= now
            else ""
        )
        table.add_row(
            found.path,
            f"{found.expires:%Y-%m-%d}",
            str(max(0, (found.expires - now).days)),
            state or ("renew soon" if found.is_due(now) else "valid"),
            " ".join(found.hosts) or NOTHING,
        )
    show(table)
    if any(found.is_due(now) for found in listed):
        notify(f"renew certificates that expire soon: podrace certs renew {opened.path}")
    return 0


def _json_of(found: Any) -> dict[str, object]:
    return {
        "path": found.path,
        "uri": found.uri,
        "hosts": list(found.hosts),
        "serial": f"{found.serial:x}",
        "expire_time": found.expires.isoformat(),
        "revoked": found.revoked,
    }
