"""Implements the `podrace` command, which calls the services of a mesh over gRPC like any other client.

podrace/cli/
  application.py  the commands by name, each imported on first use
  examples.py     the examples in `--help`
  completion.py   `completion`: scripts for shells
  session.py      runs one command: event loop, Ctrl-C, connection to a mesh
  commands/       all other commands, each in one module; related ones share it: query.py (ls, events, standings, stop),
                  catalog.py (algorithms, simulators, strategies, version), pause.py, backup.py
  conform/        `conform`: checks whether a service conforms to its contract
  continuous/     `continuous`: trains on each new version of a dataset
  curve/          `curve`: learning curves from snapshots
  databases/      `migrate`: moves a database from SQLite to PostgreSQL
  doctor/         `doctor`: what works on this machine, and how to fix what does not
  grid/           `grid`: variants of a specification
  init/           `init`: a first specification from options or answers
  pods/           `logs` and `top`: what pods do now
  policy/         `policy`: which versions a policy server serves
  pruning/        `prune`: deletes ended tournaments and leftover files
  render/         `render`: an animation of one episode
  serve/          `serve`: serves the actions of a trained policy
  tensorboard/    `tensorboard`: event files of TensorBoard
  results/        reports, plots and scores of finished tournaments
  views/          tables, live tables, plain lines, JSON
  terminal/       options, output, number formats, interrupts

The client of the services is in `podrace.client`, the embedded mesh in `podrace.mesh`.
"""

import io
import os
import sys
import traceback
from collections.abc import Sequence

import click

from podrace.errors import InvalidArgument, NotFound, PodraceError
from podrace.printable import printable

EXIT_FAILED = 1
EXIT_WRONG_REQUEST = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, and turns errors into one line on stderr and an exit code.

    Args:
        arguments: Command line without the name of the program; None: the command line of the process.

    Returns:
        0 after success, 2 for a wrong request, 130 after Ctrl-C, otherwise 1.
    """
    from podrace.cli.application import application

    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale without UTF-8 has no ± and no lines of tables: print something else instead of failing.
        sys.stdout.reconfigure(errors="replace")
    try:
        return application.main(list(arguments), prog_name="podrace", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"error: {printable(error.format_message())}", err=True)
        return error.exit_code
    except PodraceError as error:
        if "--debug" in arguments:
            traceback.print_exception(error)
        click.echo(f"error: {printable(error.message)}", err=True)
        return EXIT_WRONG_REQUEST if isinstance(error, InvalidArgument | NotFound) else EXIT_FAILED
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader, for instance `head`, has closed the pipe. Without this, Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        if "--debug" in arguments:
            traceback.print_exception(error)
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {printable(f'{place}{error.strerror or error}')}", err=True)
        return EXIT_FAILED
