"""Implements `podrace migrate`: moves the database of a service from an SQLite file to a PostgreSQL server."""

from pathlib import Path

import click

from podrace.cli import session
from podrace.cli.terminal.options import output_options
from podrace.cli.terminal.output import show, show_json
from podrace.database import DatabaseLocation
from podrace.database.location import read_password
from podrace.errors import InvalidArgument, Unimplemented
from podrace.telemetry import TelemetryConfig, configure_logging


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("url", required=False, default="")
@click.option("--password-file", default="", metavar="FILE", help="File with the password of the database.")
@click.option("--undo", is_flag=True, help="Let the service open FILE again, as it was when it was moved.")
@output_options
def migrate(file: Path, url: str, password_file: str, undo: bool, as_json: bool, debug: bool) -> int:
    """Move the database of a service from SQLite to PostgreSQL: from FILE to the server at URL (postgresql://...).

    Stop the service first, and start it with `database = URL` afterwards. The database is moved completely or not at
    all. If the command is interrupted, run it again. FILE is kept and marked, so that no service opens it by mistake.
    """
    configure_logging(TelemetryConfig(log_level="debug" if debug else "warning", metrics_listen=""))

    async def work() -> int:
        try:
            from podrace.database.moving import move, take_back  # imported only where it is used
        except ImportError:
            raise Unimplemented("podrace migrate needs psycopg: pip install 'podrace[postgresql]'") from None
        if undo:
            service = take_back(file)
            _say({"service": service, "file": str(file)}, f"the {service} can open {file} again", as_json=as_json)
            return 0
        location = DatabaseLocation.of(url or "-", password_file)
        if location.file is not None:
            raise InvalidArgument(f"URL {url!r}: expected postgresql://USER@HOST:PORT/DATABASE")
        moved = await move(file, location.url, read_password(location))
        values = {
            "service": moved.service,
            "database_id": moved.database_id,
            "rows": dict(moved.rows),
            "moved_before": moved.earlier,
        }
        count, already = sum(moved.rows.values()), ", by an earlier command" if moved.earlier else ""
        text = f"moved the database of the {moved.service}: {count} rows in {len(moved.rows)} tables{already}"
        _say(values, f"{text}\nstart the {moved.service} with database = {url}", as_json=as_json)
        return 0

    return session.run(lambda interrupts: work())


def _say(values: dict[str, object], text: str, *, as_json: bool) -> None:
    if as_json:
        show_json(values)
    else:
        show(text)
