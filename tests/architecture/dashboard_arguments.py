"""Reads the arguments of `podrace dashboard` in a manifest as the command reads them, without serving."""

from collections.abc import Sequence
from dataclasses import dataclass

from podrace.cli.commands.dashboard import dashboard
from podrace.dashboard.settings import DashboardSettings


@dataclass(frozen=True)
class Arguments:
    """What the command does with its arguments."""

    settings: DashboardSettings
    orchestrator: str


def read_arguments(arguments: Sequence[str]) -> Arguments:
    """Parses arguments; raises click.UsageError for an option that the command does not have."""
    found = dashboard.make_context("dashboard", list(arguments)).params
    return Arguments(
        DashboardSettings(
            found["listen"],
            found["token_file"],
            found["tls_certificate"],
            found["tls_key"],
            tuple(found["names"]),
            found["insecure"],
            found["sign_in"],
        ),
        found["orchestrator"],
    )
