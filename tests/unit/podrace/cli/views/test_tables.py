import time
from io import StringIO
from typing import Any

from rich.console import Console

from podrace.cli.views import tables
from podrace.orchestrator.v1.orchestrator_pb2 import Event

NAME = "stocks-x2k4qz"


def event(message: str, seconds: float) -> Event:
    made = Event(kind="agent_finished", message=message)
    made.time.FromSeconds(int(seconds))
    return made


def drawn(table: Any) -> str:
    screen = Console(width=120, file=StringIO())
    screen.print(table)
    return screen.file.getvalue()


def test_events_show_short_names_of_agents_and_pods() -> None:
    text = drawn(tables.events_table([event(f"{NAME}-a7 is assigned to {NAME}-p1; others-x2k4qz-a1 waits", 0)], NAME))
    assert "a7 is assigned to p1; others-x2k4qz-a1 waits" in text


def test_events_of_another_day_show_the_date() -> None:
    now, year = time.time(), time.strftime("%Y")
    assert f"{year}-" not in drawn(tables.events_table([event("now", now)], NAME))
    assert "1970-01-0" in drawn(tables.events_table([event("then", 86_400), event("now", now)], NAME)).split("then")[0]
    assert f"{year}-" in drawn(tables.events_table([event("now", now)], NAME, dated=True))
