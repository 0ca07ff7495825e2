"""Implements `podrace completion`: a script with which a shell completes command lines."""

import click
from click.shell_completion import get_completion_class

from podrace.cli.terminal.options import output_options
from podrace.cli.terminal.output import show_json
from podrace.errors import FailedPrecondition

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_PODRACE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@output_options
def completion(shell: str, as_json: bool, debug: bool) -> int:
    """Print a script that completes commands and options in a shell.

    The script calls `podrace`, so it stays valid when podrace is upgraded.
    """
    script = _script(shell)
    show_json({"shell": shell, "script": script}) if as_json else click.echo(script)
    return 0


def _script(shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    try:
        # Only the name of the program is used here; the script asks for the commands when a user presses Tab.
        return kind(click.Group("podrace"), {}, "podrace", VARIABLE).source()
    except RuntimeError as error:
        raise FailedPrecondition(f"completion {shell}: {error}") from None
