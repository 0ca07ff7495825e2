"""Implements `podrace policy`: shows and changes what policy servers serve."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import click

from podrace.cli import session
from podrace.cli.policy.tables import overview, values
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import FiniteRange, output_options
from podrace.cli.terminal.output import show, show_json
from podrace.client.policy_server import PolicyServerClient, every_address, named_version
from podrace.errors import FailedPrecondition, InvalidArgument, PodraceError
from podrace.policy.v1.policy_service_pb2 import Serving

HELP = """Show and change what a policy server serves.

\b
podrace policy show                         which versions serve, and why others were refused
podrace policy pin VERSION                  serve one version, even if the champion changes
podrace policy follow                       serve the champion again
podrace policy rollback                     serve the previous version
podrace policy compare VERSION --share 0.1  let a second version answer a tenth of the requests
podrace policy compare --end                end the comparison

VERSION is the digest of the manifest of a candidate, or the beginning of one that `podrace policy show` lists. Changes
need the role operator. Each command takes --json.
"""

Change = Callable[[PolicyServerClient], Awaitable[Serving]]
Command = Callable[..., int]


@click.group(help=HELP)
def policy() -> None:
    """The commands `podrace policy ...`."""


def server_options(command: Command) -> Command:
    """Adds the options that name servers, --json and --debug; the command receives a function that runs a change."""

    @click.option(
        "--server", default="127.0.0.1:8001", show_default=True, metavar="ADDRESS", help="Address of the policy server."
    )
    @click.option(
        "--every", is_flag=True, help="Apply to the servers at every address that the name in --server has in DNS."
    )
    @output_options
    @functools.wraps(command)
    def with_servers(server: str, every: bool, as_json: bool, debug: bool, **arguments: Any) -> int:
        addresses = every_address(server) if every else [server]
        return command(functools.partial(_run, addresses, as_json), **arguments)

    return with_servers


@policy.command("show", short_help="Show which versions serve.")
@server_options
def show_versions(run: Callable[[Change], int]) -> int:
    """Show which versions a server serves, and which it has refused."""
    return run(PolicyServerClient.serving)


@policy.command(short_help="Serve one version until `follow`.")
@click.argument("version", metavar="VERSION")
@server_options
def pin(run: Callable[[Change], int], version: str) -> int:
    """Serve VERSION, and no other until `podrace policy follow`. The gate does not apply."""

    async def change(server: PolicyServerClient) -> Serving:
        return await server.pin(named_version(await server.serving(), version))

    return run(change)


@policy.command(short_help="Serve what the source offers again.")
@server_options
def follow(run: Callable[[Change], int]) -> int:
    """Serve the champion, or the newest export, again. Versions that were rolled back or refused stay refused."""
    return run(PolicyServerClient.follow)


@policy.command(short_help="Serve the previous version.")
@click.option(
    "--from", "from_version", default="", metavar="VERSION", help="Refuse if another version serves.  [default: any]"
)
@server_options
def rollback(run: Callable[[Change], int], from_version: str) -> int:
    """Serve the previous version. The current one is not served again when it is offered.

    To serve it nevertheless, pin it.
    """

    async def change(server: PolicyServerClient) -> Serving:
        serving = await server.serving()
        if not serving.version:
            raise FailedPrecondition(f"{server.address}: no version serves yet")
        wanted = named_version(serving, from_version) if from_version else serving.version
        return await server.roll_back(wanted)

    return run(change)


@policy.command(short_help="Let a second version answer a share of the requests, or shadow them.")
@click.argument("version", required=False, default="", metavar="[VERSION]")
@click.option("--share", type=FiniteRange(0.0, 1.0), default=None, help="Share of the requests that it answers.")
@click.option(
    "--shadow", is_flag=True, help="It computes all requests, but its answers are not sent; metrics count differences."
)
@click.option("--end", is_flag=True, help="End the comparison.")
@server_options
def compare(run: Callable[[Change], int], version: str, share: float | None, shadow: bool, end: bool) -> int:
    """Add VERSION besides the one that serves: --share for an A/B test, or --shadow. --end removes it.

    All requests of a session get answers of the same version.
    """
    if end:
        if version or share or shadow:
            raise InvalidArgument("--end takes no VERSION, --share or --shadow")
        return run(PolicyServerClient.end_comparison)
    if not version or bool(share) == shadow:
        raise InvalidArgument("name VERSION and either --share, above 0, or --shadow")

    async def change(server: PolicyServerClient) -> Serving:
        named = named_version(await server.serving(), version)
        return await server.start_comparison(named, share=share or 0.0, shadow=shadow)

    return run(change)


def _run(addresses: list[str], as_json: bool, change: Change) -> int:
    """Makes a change at each server and shows the results; if a server fails, also those of the servers before it."""

    async def command(interrupts: Interrupts) -> int:
        changed: list[tuple[str, Serving]] = []
        try:
            for address in addresses:
                async with PolicyServerClient(address) as server:
                    changed.append((address, await change(server)))
        except PodraceError as error:
            if not changed:
                raise
            _show(changed, as_json)
            raise type(error)(f"{address}: {error.message}; the servers above have changed") from None
        _show(changed, as_json)
        return 0

    return session.run(command)


def _show(changed: list[tuple[str, Serving]], as_json: bool) -> None:
    if as_json:
        show_json([values(address, serving) for address, serving in changed])
        return
    for address, serving in changed:
        show(overview(address, serving))
