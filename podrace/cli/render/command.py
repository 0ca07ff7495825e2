"""Implements `podrace render`. Drawing happens in a child process, which has the libraries of the simulators."""

import asyncio
import base64
import contextlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.cli import session
from podrace.cli.terminal import formats
from podrace.cli.terminal.atomic_file import check_file, whole_file
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings, mesh_options, parse_options
from podrace.cli.terminal.output import show, show_json
from podrace.client.evaluating import evaluation_options
from podrace.client.named_checkpoints import find_checkpoints
from podrace.errors import FailedPrecondition, InvalidArgument, Unimplemented
from podrace.mesh.home_lock import Use
from podrace.tournament.v1.tournament_pb2 import Tournament

SUFFIXES = (".gif", ".mp4", ".webp")
RENDER_SECONDS = 600.0
_FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class RenderSettings:
    """Arguments of the command that concern the episode and its pictures."""

    options: Struct
    seed: int
    stochastic: bool
    most_steps: int
    most_pictures: int
    frames_per_second: float


@click.command()
@click.argument("subject", metavar="TOURNAMENT|CANDIDATE")
@click.option(
    "--file",
    "file",
    type=_FILE,
    metavar="FILE.gif|mp4|webp",
    help="File to write.  [default: the id and .gif]",
)
@click.option("--option", "options", multiple=True, metavar="K=V", help="Option of the environment; repeatable.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the episode.")
@click.option("--stochastic", is_flag=True, help="Sample actions instead of taking the most likely one.")
@click.option("--steps", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Most steps.")
@click.option("--pictures", type=click.IntRange(2, 2000), default=300, show_default=True, help="Most pictures.")
@click.option("--fps", type=click.FloatRange(1, 50), default=30.0, show_default=True, help="Steps shown per second.")
@mesh_options
def render(
    settings: Settings,
    subject: str,
    file: Path | None,
    options: Sequence[str],
    seed: int,
    stochastic: bool,
    steps: int,
    pictures: int,
    fps: float,
) -> int:
    """Draw one episode of a champion or another candidate.

    Environments of Gymnasium, the classic tasks and mujoco: are drawn as they look, and of the simulator stocks the
    value of the account. Longer episodes are drawn with fewer pictures per second. TOURNAMENT and CANDIDATE are those
    of `podrace evaluate`.
    """
    how = RenderSettings(parse_options(options), seed, stochastic, steps, pictures, fps)
    if file is not None:
        _check(file)
    session.require_tournaments(settings)
    if importlib.util.find_spec("simulators") is None:
        raise FailedPrecondition("render: the package simulators is not installed here; run it where pods run")

    async def command(interrupts: Interrupts) -> int:
        async with session.open_client(settings, Use.QUERY, interrupts) as client:
            tournament, checkpoints = await find_checkpoints(client, subject, where=settings.where)
            target = file or Path(f"{tournament.tournament_id}.gif")
            _check(target)
            with whole_file(target, "--file") as place:
                request = request_of(tournament, checkpoints, how, place, target.suffix)
                facts = await _child(request | {"trusted": not settings.orchestrator})
        if settings.as_json:
            show_json(facts | {"tournament_id": tournament.tournament_id, "seed": seed, "file": str(target)})
        else:
            show(_line(facts, seed, target))
        return 0

    return session.run(command)


def _check(path: Path) -> None:
    check_file(path, "--file")
    if path.suffix not in SUFFIXES:
        raise InvalidArgument(
            f"--file {path}: expected a file name with the suffix {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )


def request_of(
    tournament: Tournament, checkpoints: Sequence[Checkpoint], how: RenderSettings, place: Path, suffix: str
) -> dict[str, Any]:
    """Returns the request for the child process. The environment is that of the tournament's evaluations."""
    environment = type(tournament.spec.environment)()
    environment.CopyFrom(tournament.spec.environment)
    environment.count = 1
    environment.options.update(json_format.MessageToDict(evaluation_options(tournament, how.options)))
    return {
        "tournament_id": tournament.tournament_id,
        "leaderboard_address": tournament.leaderboard_address,
        "digests": [one.manifest_digest for one in checkpoints],
        "environment": base64.b64encode(environment.SerializeToString()).decode(),
        "seed": how.seed,
        "sampled": how.stochastic or not tournament.spec.evaluation.greedy,
        "most_steps": how.most_steps,
        "most_pictures": how.most_pictures,
        "frames_per_second": how.frames_per_second,
        "file": str(place),
        "suffix": suffix,
    }


def _line(facts: Mapping[str, Any], seed: int, target: Path) -> str:
    end = "" if facts["ended"] else ", cut off"
    steps = formats.things(facts["steps"], "step")
    return f"{target}: return {formats.number(facts['episode_return'])} in {steps}{end} (seed {seed})"


async def _child(request: Mapping[str, Any]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "simulators.rendering"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(RENDER_SECONDS):
            printed, log = await process.communicate(json.dumps(request).encode())
    except TimeoutError:
        raise FailedPrecondition(f"render: took longer than {RENDER_SECONDS:g} s; lower --steps") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    lines = log.decode(errors="replace").strip().splitlines() or ["no message"]
    if process.returncode:
        raise Unimplemented(f"render: {lines[-1].removeprefix('error: ')}")
    found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return found
