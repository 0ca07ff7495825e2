"""Serves the dashboard of a scripted mesh as if it were that of a home: `home_gateway.py ADDRESS LISTEN FOLDER`.

The mesh has no policies, so an episode is a drawn square that moves.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from podrace.dashboard.gateway import serving
from podrace.dashboard.on_demand import episodes
from podrace.dashboard.settings import DashboardSettings
from simulators.rendering.animation import Animation


async def draw_square(request: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:
    """Takes the place of the child process that plays an episode."""
    animation = Animation(most=20)
    for place in range(20):
        picture = Image.new("RGB", (64, 48), "white")
        ImageDraw.Draw(picture).rectangle((place, 10, place + 20, 30), fill="blue")
        animation.add(picture)
    animation.write(Path(request["file"]), request["frames_per_second"], request["suffix"])
    return {"steps": 20, "episode_return": 12.5, "ended": True, "pictures": 20}


async def serve(address: str, listen: str, folder: Path) -> None:
    """Serves until the process is stopped; logs and the token are in the folder."""
    settings = DashboardSettings(listen, token_file=folder / "token", logs=folder / "logs")
    async with serving(settings, address) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    episodes.rendered = draw_square
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
