"""Draws one episode of a policy in a child process, which has the libraries of the simulators."""

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

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.errors import FailedPrecondition, Unimplemented
from podrace.tournament.v1.tournament_pb2 import Tournament

RENDER_SECONDS = 600.0


@dataclass(frozen=True)
class EpisodeSettings:
    """What is drawn: the episode and its pictures."""

    options: Struct
    """Options of the environment, merged over those of the tournament's training."""
    seed: int = 0
    stochastic: bool = False
    """Whether actions are sampled although evaluations of the tournament take the most likely one."""
    most_steps: int = 10_000
    most_pictures: int = 300
    frames_per_second: float = 30.0


def require_simulators() -> None:
    """Checks that episodes can be drawn here.

    Raises:
        FailedPrecondition: The package of the simulators is not installed.
    """
    if importlib.util.find_spec("simulators") is None:
        raise FailedPrecondition("render: the package simulators is not installed here; run it where pods run")


def rendering_request(
    tournament: Tournament,
    checkpoints: Sequence[Checkpoint],
    how: EpisodeSettings,
    file: Path,
    suffix: str,
    *,
    trusted: bool,
) -> dict[str, Any]:
    """Returns the request for the child process.

    Args:
        tournament: The tournament.
        checkpoints: The policy, or the members of an ensemble.
        how: The episode.
        file: File to write.
        suffix: `.gif`, `.mp4` or `.webp`.
        trusted: Whether the specification may name user code, because the mesh is this user's own.
    """
    environment = type(tournament.spec.environment)()
    environment.CopyFrom(tournament.spec.environment)
    environment.count = 1
    environment.options.update(json_format.MessageToDict(how.options))
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
        "file": str(file),
        "suffix": suffix,
        "trusted": trusted,
    }


async def rendered(request: Mapping[str, Any], deadline_seconds: float = RENDER_SECONDS) -> dict[str, Any]:
    """Draws the episode of a request; the child process is killed when the call is cancelled.

    Returns:
        `steps`, `episode_return`, `ended` and `pictures`.

    Raises:
        FailedPrecondition: It took too long.
        Unimplemented: It failed, for instance because the environment cannot be drawn; the message says why.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "simulators.rendering"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(deadline_seconds):
            printed, log = await process.communicate(json.dumps(request).encode())
    except TimeoutError:
        raise FailedPrecondition(
            f"render: took longer than {deadline_seconds:g} s; lower the number of steps"
        ) from None
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
