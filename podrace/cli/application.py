"""Lists the commands of `podrace`. Each is imported on first use, which keeps `--help` fast."""

import keyword
from collections.abc import Mapping
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from podrace import __version__
from podrace.cli.examples import epilog
from podrace.config import unknown

COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("podrace.cli.init.command", "Write a commented specification for `podrace train`."),
    "train": ("podrace.cli.commands.train", "Train a tournament and show it live, or resume one."),
    "grid": ("podrace.cli.grid.command", "Run variants of a specification and compare their results."),
    "continuous": (
        "podrace.cli.continuous.command",
        "Train on each new version of a dataset, and keep the best champion.",
    ),
    "ls": ("podrace.cli.commands.query", "List the tournaments, newest first."),
    "show": ("podrace.cli.commands.show", "Show a tournament, or one aspect of its results."),
    "events": ("podrace.cli.commands.query", "Show all events of a tournament with their reasons, oldest first."),
    "top": ("podrace.cli.pods.top", "Show the pods of running tournaments, live until Ctrl-C."),
    "logs": ("podrace.cli.pods.logs", "Show the log of a pod, or of a service."),
    "standings": ("podrace.cli.commands.query", "Show the board of a tournament."),
    "lineage": (
        "podrace.cli.commands.lineage",
        "Show the ancestry of agents, or repeat decisions or a training run to verify them.",
    ),
    "evaluate": ("podrace.cli.commands.evaluate", "Evaluate a champion or another candidate."),
    "ensemble": ("podrace.cli.commands.ensemble", "Evaluate the best agents as an ensemble, and each alone."),
    "export": ("podrace.cli.commands.export", "Export a champion or another candidate as ONNX or torch.export."),
    "import": ("podrace.cli.commands.import_model", "Convert a Stable-Baselines3 model to an exported policy."),
    "serve": ("podrace.cli.serve.command", "Serve a champion, a candidate or an exported policy."),
    "policy": ("podrace.cli.policy.command", "Show and change what a policy server serves."),
    "render": ("podrace.cli.render.command", "Render one episode of a champion or another candidate."),
    "curve": ("podrace.cli.curve.command", "Draw learning curves from evaluated snapshots."),
    "dashboard": ("podrace.cli.commands.dashboard", "Serve a web page that shows tournaments live and controls them."),
    "tensorboard": ("podrace.cli.tensorboard.command", "Write event files for TensorBoard."),
    "update": (
        "podrace.cli.commands.update",
        "Change the pool limits or the objective of a running tournament, or the labels of any.",
    ),
    "pause": ("podrace.cli.commands.pause", "Pause a running tournament; its pods publish and exit."),
    "resume": ("podrace.cli.commands.pause", "Resume a tournament that was paused or stopped, or that failed."),
    "stop": ("podrace.cli.commands.query", "Stop a tournament and keep its results."),
    "delete": ("podrace.cli.commands.delete", "Delete a tournament that has ended, with its checkpoints."),
    "prune": ("podrace.cli.pruning.command", "Delete tournaments that have ended, by age, state or number."),
    "archive": ("podrace.cli.commands.backup", "List the archives of deleted tournaments, or extract one."),
    "backup": (
        "podrace.cli.commands.backup",
        "Back up the databases of a home or a running mesh, or list backups.",
    ),
    "restore": (
        "podrace.cli.commands.backup",
        "Restore the databases of a home from the newest backup, or from another one.",
    ),
    "migrate": ("podrace.cli.databases.migrate", "Move the database of a service from SQLite to PostgreSQL."),
    "data": ("podrace.cli.commands.data", "Prepare prices for the simulator stocks: build, check, synthesize."),
    "store": ("podrace.cli.commands.store", "Maintain a checkpoint store: check, ls, verify, gc."),
    "certs": ("podrace.cli.commands.certs", "Make certificates for TLS: make, add, ls, renew, revoke, secrets."),
    "token": ("podrace.cli.commands.token", "Make a token for a person, a program or a pod."),
    "algorithms": ("podrace.cli.commands.catalog", "List the algorithms, or the hyperparameters of one."),
    "simulators": ("podrace.cli.commands.catalog", "List the simulators."),
    "strategies": ("podrace.cli.commands.catalog", "List the evolution strategies."),
    "doctor": ("podrace.cli.doctor.command", "Check whether podrace works here, and say how to fix what does not."),
    "conform": ("podrace.cli.conform.command", "Check whether a service conforms to its contract."),
    "qualify": ("podrace.cli.commands.qualify", "Test and measure the GPUs of this machine."),
    "completion": ("podrace.cli.completion", "Print a script that completes commands and options in a shell."),
    "version": ("podrace.cli.commands.catalog", "Show the version."),
}
"""Module and help line of each command."""


class LateCommands(click.Group):
    """A group that imports the module of a command only when that command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names, in the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command; raises UsageError if there is none with this name."""
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:
                # A shell that asks for completions shows any output of this process in the middle of the command line.
                return None
            raise click.UsageError(unknown("podrace", "command", cmd_name, COMMANDS))
        # The function of a command whose name is a keyword has an underscore at its end.
        function = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(import_module(COMMANDS[cmd_name][0]), function)
        _add_examples(cmd_name, command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the name of a command without importing any."""
        names = [CompletionItem(name, help=line) for name, (_, line) in COMMANDS.items() if name.startswith(incomplete)]
        # Options of the group; click.Group would import every command for its line of help.
        return names + super(click.Group, self).shell_complete(ctx, incomplete)


def _add_examples(name: str, command: click.Command) -> None:
    """Adds the examples below the options of a command, and of those of a group."""
    command.epilog = command.epilog or epilog(name)
    if isinstance(command, click.Group):
        for part, each in command.commands.items():
            _add_examples(f"{name} {part}", each)


HELP = """Train a population of agents that compete in a tournament.

\b
podrace train examples/cartpole.toml    train, watch, get results
podrace standings latest                show the best agents
podrace train --resume latest           continue a stopped, paused or failed tournament
"""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.command(cls=LateCommands, context_settings=CONTEXT, help=HELP)
@click.version_option(__version__, prog_name="podrace", message="%(prog)s %(version)s")
def application() -> None:
    """The command `podrace`."""
