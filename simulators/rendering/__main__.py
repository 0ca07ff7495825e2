"""Draws one episode: `python -m simulators.rendering`, with a request as JSON on stdin; prints the result as JSON."""

import asyncio
import base64
import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from podrace.errors import PodraceError, Unimplemented
from podrace.limits.config import EVERYTHING, NOTHING
from podrace.policy.loading import fetch_candidates
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec, Tournament
from simulators.messages import make_simulator


def main() -> int:
    """Draws, and returns the exit code."""
    try:
        print(json.dumps(drawn(json.load(sys.stdin))))
    except PodraceError as error:
        print(f"error: {printable(error.message)}", file=sys.stderr)
        return 1
    return 0


def drawn(request: dict[str, Any]) -> dict[str, Any]:
    """Plays the episode of a request, writes its file, and returns what happened in it.

    Raises:
        Unimplemented: The environment cannot be drawn, or a package is missing.
        PodraceError: The policy cannot be loaded, or the simulator fails.
    """
    try:
        from simulators.rendering.animation import VIDEO, Animation
        from simulators.rendering.cameras import camera_of, choose_graphics, options_for_camera
        from simulators.rendering.episode import play
    except ModuleNotFoundError as error:
        raise Unimplemented(f"rendering needs the package {error.name!r}: pip install 'podrace[render]'") from None
    if request["suffix"] == VIDEO and importlib.util.find_spec("av") is None:
        raise Unimplemented(f"writing {VIDEO} needs the package 'av': pip install 'podrace[video]', or write .gif")
    choose_graphics()
    environment = EnvironmentSpec.FromString(base64.b64decode(request["environment"]))
    id = environment.id
    environment.options.update(dict(options_for_camera(id)))
    tournament = Tournament(tournament_id=request["tournament_id"], leaderboard_address=request["leaderboard_address"])
    policy = asyncio.run(fetch_candidates(tournament, request["digests"]))
    simulator = make_simulator(environment, torch.device("cpu"), EVERYTHING if request["trusted"] else NOTHING)
    camera = None if id == "stocks" else camera_of(id, simulator)
    animation = Animation(request["most_pictures"])
    try:
        played = play(
            *(simulator, policy, animation, camera),
            seed=request["seed"],
            sampled=request["sampled"],
            most_steps=request["most_steps"],
        )
    finally:
        if camera:
            camera.close()
        simulator.close()
    animation.write(Path(request["file"]), request["frames_per_second"], request["suffix"])
    return asdict(played) | {"pictures": len(animation)}


if __name__ == "__main__":
    sys.exit(main())
