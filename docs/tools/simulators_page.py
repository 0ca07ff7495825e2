"""Builds the tables of docs/simulators.md from the catalog and from the options class of each simulator."""

import dataclasses
import importlib
import inspect
from collections.abc import Iterable, Sequence

from docstrings import attribute_texts
from markdown_tables import sentence, shown, table

from podrace.specification import catalog
from simulators.classic import ClassicOptions
from simulators.games.board_game import BoardOptions
from simulators.games.table_game import TableOptions
from simulators.isaac.client import IsaacOptions
from simulators.mujoco import options as mujoco
from simulators.stocks.options import StockOptions
from simulators.teams.particle_tasks import SpreadOptions, TagOptions
from simulators.warp import options as warp
from simulators.wrappers import WRAPPERS

Rows = Iterable[Sequence[str]]


def rows(kind: type, left_out: Sequence[str] = ()) -> Rows:
    """Yields a row for each field of an options class."""
    texts = attribute_texts(kind)
    for field in dataclasses.fields(kind):
        if field.name not in left_out:
            yield f"`{field.name}`", shown(field.default), sentence(texts.get(field.name, ""))


def compared_rows(kinds: Sequence[type], left_out: Sequence[str] = ()) -> Rows:
    """Yields a row for each field of several options classes, with the default of each; "-" where one has none."""
    names = dict.fromkeys(field.name for kind in kinds for field in dataclasses.fields(kind))
    texts = {name: text for kind in kinds for name, text in attribute_texts(kind).items()}
    defaults = [{field.name: shown(field.default) for field in dataclasses.fields(kind)} for kind in kinds]
    for name in names:
        if name not in left_out:
            yield f"`{name}`", *(own.get(name, "-") for own in defaults), sentence(texts.get(name, ""))


def docstring_table(module: str) -> str:
    """Returns the table of options in a module's docstring."""
    lines = inspect.getdoc(importlib.import_module(module)).splitlines()  # type: ignore[union-attr]
    return "\n".join(line for line in lines if line.startswith("|")) + "\n"


def wrapper_rows() -> Rows:
    """Yields a row for each wrapper."""
    for name, (wrapper, options) in WRAPPERS.items():
        own = ", ".join(f"`{field.name}` = {shown(field.default)}" for field in dataclasses.fields(options))
        text = (inspect.getdoc(wrapper) or "").partition("\n\n")[0]
        yield f"`{name}`", own or "-", sentence(text)


def tables() -> dict[str, str]:
    """Returns the tables of the page by the name in its template."""
    three = ("Option", "Default", "Meaning")
    tasks = (
        mujoco.AntOptions,
        mujoco.HumanoidOptions,
        mujoco.HalfCheetahOptions,
        mujoco.HopperOptions,
        mujoco.Walker2dOptions,
    )
    names = (kind.id.removesuffix("-v5") for kind in tasks)
    isaac = (warp.IsaacAntOptions, warp.IsaacHumanoidOptions)
    ids = (
        [f"`{name}`", entry.action_kind or "both", "yes" if entry.on_gpu else "no", sentence(entry.help)]
        for name, entry in catalog.SIMULATORS.items()
    )
    return {
        "ids": table(("`environment.id`", "Actions", "On a GPU", "What it is"), ids),
        "classic": table(three, rows(ClassicOptions)),
        "spread": table(three, rows(SpreadOptions)),
        "tag": table(three, rows(TagOptions)),
        "board-games": table(three, rows(BoardOptions)),
        "table-games": table(three, rows(TableOptions)),
        "stocks": table(three, rows(StockOptions)),
        "mujoco": table(("Option", *names, "Meaning"), compared_rows(tasks)),
        "warp": table(three, rows(warp.WarpOptions)),
        "warp-isaac": table(("Option", "ant", "humanoid", "Meaning"), compared_rows(isaac)),
        "envpool": docstring_table("simulators.envpool"),
        "atari": docstring_table("simulators.atari"),
        "isaac": table(three, rows(IsaacOptions)),
        "wrappers": table(("`name`", "Options", "What it does"), wrapper_rows()),
    }
