"""Readers of files and texts from outside, each with a random or damaged input. They may raise PodraceError only."""

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

import torch
from message_maker import HOSTILE, MessageMaker
from worlds import SPEC, an_evaluation, given_spec

from leaderboard.store import pagination
from podrace import page_tokens
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part, Pointer
from podrace.checkpoint_store.manifest import manifest_bytes, manifest_from_bytes, pointer_from_bytes
from podrace.errors import Internal, PodraceError
from podrace.leaderboard.v1.leaderboard_pb2 import GetLineageRequest, ListCandidatesRequest, ListSnapshotsRequest
from podrace.specification import files
from podrace.tensor_transport import codec
from podrace.tournament.v1.tournament_pb2 import TournamentSpec
from simulators.stocks.data import load_prices

WORDS = (
    "race",
    "ppo",
    "sac",
    "CartPole-v1",
    "stocks",
    "learning_rate",
    "hidden_sizes",
    "options",
    "0" * 64,
    "incumbent",
)
TOML_VALUES = (
    "0", "-1", "1.5", "nan", "inf", "true", '"x"', '"90s"', '"-1h"', "[]", "[1, [2]]", "{}", "{low = 1, high = 0}",
    "{choices = [1, 2]}", "1979-05-27", "07:32:00", '"python:os:getcwd"', '"""a\nb"""', "99999999999999999999", "1e400",
    '{when = {gamma = 0.9}, low = 0.1, high = 0.2}', '"\\u001b[2J"', "[{a = 1}]",
)  # fmt: skip
CELLS = (
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "1e400",
    "x",
    '"',
    "2020-13-45",
    "1,2",
    "\x00",
    "é",
    "9" * 400,
    "2020-01-01T00:00:00Z",
)


def manifest(random: Random) -> None:
    """Reads a manifest."""
    manifest_from_bytes(_damaged_text(random, _manifest()))


def pointer(random: Random) -> None:
    """Reads a pointer."""
    given = Pointer(agent_id="t-a0", lease_epoch=3, manifest_digest="0" * 64)
    pointer_from_bytes(_damaged_text(random, json.dumps({"agent_id": given.agent_id, "lease_epoch": "3"}).encode()))


def safetensors(random: Random) -> None:
    """Reads a file of tensors."""
    codec.decode(_damaged_tensors(random))


def specification_text(random: Random) -> None:
    """Reads a specification in TOML."""
    lines = _toml_lines()
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(len(lines))
        key = lines[place].partition("=")[0].strip() or "name"
        lines[place] = f"{random.choice((key, random.choice(WORDS)))} = {random.choice(TOML_VALUES)}"
    text = "\n".join(lines).encode()
    if random.random() < 0.2:
        text = MessageMaker(random, WORDS).damaged(text)
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(text)
        file.flush()
        files.load(
            Path(file.name), [f"{random.choice(WORDS)}.{random.choice(WORDS)}=1"] if random.random() < 0.1 else []
        )


def specification_message(random: Random) -> None:
    """Resolves a specification that a client sent as a message."""
    from podrace.specification.resolve import resolve

    maker, spec = MessageMaker(random, WORDS), given_spec()
    for _ in range(random.choice((1, 2, 4))):
        maker.mutate(spec)
    resolved = resolve(spec)
    assert resolve(resolved) == resolved, "resolving twice changes something"


def prices(random: Random) -> None:
    """Reads prices in CSV."""
    rows = [f"2020-01-{day:02},{ticker},1.0,2.0,0.5,1.5,1000" for day in range(1, 6) for ticker in ("A", "B")]
    rows.insert(0, "date,ticker,open,high,low,close,volume")
    for _ in range(random.choice((0, 1, 2))):
        place = random.randrange(len(rows))
        cells = rows[place].split(",")
        cells[random.randrange(len(cells))] = random.choice(CELLS)
        rows[place] = ",".join(cells)
    text = "\n".join(rows).encode()
    if random.random() < 0.5:
        text = MessageMaker(random, WORDS).damaged(text)
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        file.write(text)
        file.flush()
        load_prices(file.name, random.choice(((), ("A",), ("A", "C"))))


def page_token(random: Random) -> None:
    """Reads page tokens, filters and orders."""
    maker = MessageMaker(random, WORDS)
    kind = random.choice((ListCandidatesRequest, GetLineageRequest, ListSnapshotsRequest))
    known = page_tokens.token_after(["t", random.choice((False, "lineage"))], random.choice((0, 5, 2**62)))
    token = maker.damaged(known.encode()).decode(errors="ignore") if random.random() < 0.7 else maker.text()
    request = kind(tournament_id="t", page_token=token)
    if random.random() < 0.5:
        request.filter, request.order_by = maker.text(), maker.text()
    with suppress(PodraceError):
        page_tokens.position_in(token, ["events", "t"], int)
    pagination.page_of(request)


def _damaged_text(random: Random, data: bytes) -> bytes:
    """Changes JSON as a structure or as bytes."""
    if random.random() < 0.5:
        return MessageMaker(random, WORDS).damaged(data)
    values = json.loads(data)
    for _ in range(random.choice((1, 2))):
        key = random.choice([*values, "unknown"])
        values[key] = random.choice(
            (None, -1, 1e400, "", [], {}, [[[]]], {"a": {"b": 1}}, "99999999999999999999", random.choice(HOSTILE), True)
        )
    if random.random() < 0.05:
        return b"[" * random.choice((10, 2000, 200_000))
    return json.dumps(values).encode()


def _damaged_tensors(random: Random) -> bytes:
    data = _tensors()
    if random.random() < 0.5:
        return MessageMaker(random, WORDS).damaged(data)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    entry = header[random.choice(list(header))]
    if isinstance(entry, dict):
        key = random.choice((*entry, "dtype", "shape", "data_offsets"))
        entry[key] = random.choice(
            (
                None,
                -1,
                "F64",
                "F32",
                "BOOL",
                [0, 2**62],
                [2**63, 2**63],
                [-1],
                [3, 4, 0],
                [8, 4],
                [0, 10**12],
                "x",
                {},
                [1.5],
            )
        )
    text = json.dumps(header).encode()
    size = random.choice((len(text), len(text), 0, 2**40, 2**63, len(text) + 7))
    return size.to_bytes(8, "little") + text + data[end:]


@cache
def _manifest() -> bytes:
    made = Manifest(
        format_version=1, tournament_id="t", agent_id="t-a0", algorithm="ppo", seed=3, evaluation=an_evaluation()
    )
    made.parts.append(Part(name="policy", digest="0" * 64, size_bytes=7))
    made.hyperparameters["gamma"] = 0.9
    return manifest_bytes(made)


@cache
def _tensors() -> bytes:
    return codec.encode({"a": torch.zeros(3, 4), "b": torch.ones(2, dtype=torch.int64)}, {"key": "value"})


def _toml_lines() -> list[str]:
    return files.to_toml(TournamentSpec.FromString(_spec_bytes())).splitlines()


@cache
def _spec_bytes() -> bytes:
    assert SPEC
    return given_spec().SerializeToString()


def _tolerant(read: Callable[[Random], None]) -> Callable[[Random], str]:
    """Lets a reader refuse its input; an Internal error is a defect. Returns the name of the status."""

    def run(random: Random) -> str:
        try:
            read(random)
        except Internal:
            raise
        except PodraceError as error:
            return error.code
        return "OK"

    return run


READERS: Mapping[str, Callable[[Random], str]] = {
    read.__name__: _tolerant(read)
    for read in (manifest, pointer, safetensors, specification_text, specification_message, prices, page_token)
}
"""Readers by name."""
