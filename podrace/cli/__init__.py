"""The `podrace` command. It owns what a person types and sees, and talks gRPC to the mesh like anybody else.

podrace/cli/
  application.py    the commands by name, each imported when it is asked for
  options.py        what every command can be told: --home, --orchestrator, --json, --debug
  session.py        one command from its first call to its exit code: event loop, Ctrl-C, which mesh it talks to
  interrupts.py     Ctrl-C and SIGTERM
  client.py        the calls a person needs, with their deadlines and pages
  mesh.py           the embedded mesh: orchestrator and leaderboard as processes of this machine
  claim.py          who owns a home's mesh (PURE decision), and the lock that makes it so
  folders.py        where an embedded mesh keeps what
  processes.py      a service as a process: started, watched, started again, stopped
  pods.py           pods that outlived their mesh
  train.py          `train`: from specification to results
  specification.py  TOML to specification and back
  follow.py         keeps a view of a tournament true until its end; live.py and plain.py show it, progress.py (PURE)
  report.py         the champion after the end; plots.py draws it, page.py (PURE) makes a page of a backtest
  data.py           `data`: prices to an array file, by a process of simulators.stocks
  scoring.py        has a pod score a checkpoint, for reports and for evaluate.py
  grid/             `grid`: a specification along axes
  curve/            `curve`: learning curves from snapshots
  continuous/       `continuous`: trains on each new version of a dataset
  query.py          `ls`, `show` (overview.py), `standings`, `stop`; lineage.py and lists.py: what is left
  store_choice.py   which checkpoint store the embedded mesh of a home uses
  store.py          `store`: looks after a checkpoint store; store_contents.py works out what lies there
  resolve.py        abbreviated ids (PURE)
  shapes.py         what --json prints; formats.py, tables.py, output.py: what people read
"""

import os
import sys
import traceback
from collections.abc import Sequence

import click

from podrace.errors import InvalidArgument, NotFound, PodraceError

EXIT_FAILED = 1
EXIT_WRONG_REQUEST = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the only place where an error becomes a line and an exit code.

    Args:
        arguments: The command line without the program's name; that of the process when None.

    Returns:
        0 when all went well, 2 when the request was wrong, 130 after Ctrl-C, else 1.
    """
    from podrace.cli.application import application

    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return application.main(list(arguments), prog_name="podrace", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        return error.exit_code
    except PodraceError as error:
        if "--debug" in arguments:
            traceback.print_exception(error)
        click.echo(f"error: {error.message}", err=True)
        return EXIT_WRONG_REQUEST if isinstance(error, InvalidArgument | NotFound) else EXIT_FAILED
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`head`, say) has seen enough; without this, Python complains again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
