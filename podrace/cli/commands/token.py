"""Implements `podrace token`: signs a token with the key of the mesh."""

import re
import time
from pathlib import Path

import click

from podrace.access.mesh_key import MeshKey
from podrace.access.principal import ROLES_BY_NAME
from podrace.access.token_file import MESH_KEY, token_path
from podrace.access.tokens import AUDIENCE, POD_PREFIX, claims_of
from podrace.cli.terminal.output import show_json
from podrace.errors import InvalidArgument

PODS = ("pod-leader", "pod-role")
GRANTED = ("viewer", "user", "operator", *PODS)
"""Roles that the command can grant; services sign their own tokens."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command()
@click.argument("name")
@click.option("--role", type=click.Choice(GRANTED), default="user", show_default=True, help="Role of the holder.")
@click.option("--namespace", default="", help="Namespace of the holder.  [default: the default namespace]")
@click.option("--tournament", default="", help="The only tournament that the holder may reach.  [default: any]")
@click.option("--lifetime", default="30d", show_default=True, metavar="TIME", help="For instance 15m, 12h or 30d.")
@click.option("--audience", default=AUDIENCE, show_default=True, help="Service that may accept the token.")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="Private key of the mesh, made if it does not exist.  [default: mesh.key next to the token file]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value on stdout.")
@click.option("--debug", is_flag=True, help="Print tracebacks.")
def token(
    name: str,
    role: str,
    namespace: str,
    tournament: str,
    lifetime: str,
    audience: str,
    key: Path | None,
    as_json: bool,
    debug: bool,
) -> int:
    """Make a token for a person, a program or a pod.

    NAME is the name of the holder; for the role of a pod, the id of the pod. The holder sets PODRACE_TOKEN to the
    token, or PODRACE_TOKEN_FILE to a file with it that no one else can read. A token cannot be revoked before it
    expires, except by replacing the key of the mesh.
    """
    if not name.strip() or not name.isprintable():
        raise InvalidArgument(f"NAME = {name!r}: expected printable text")
    expire_time = time.time() + lifetime_seconds(lifetime)
    claims = claims_of(
        f"{POD_PREFIX}{name}" if role in PODS else name,
        {ROLES_BY_NAME[role]},
        expire_time=expire_time,
        namespace=namespace,
        tournament_id=tournament,
        audience=audience,
    )
    signed = MeshKey.load_or_make(key or token_path().with_name(MESH_KEY)).sign(claims)
    if as_json:
        show_json({"token": signed, "name": name, "role": role, "expire_time": expire_time})
    else:
        click.echo(signed)
    return 0


def lifetime_seconds(text: str) -> float:
    """Parses a lifetime such as `12h`.

    Raises:
        InvalidArgument: The text is not a positive number with one of the units s, m, h and d.
    """
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if not found or not int(found[1]):
        raise InvalidArgument(f"--lifetime {text}: expected a number and a unit, for instance 15m, 12h or 30d")
    return float(found[1]) * _UNITS[found[2]]
