"""Serves the dashboard of a scripted mesh as if it were that of a home: `home_gateway.py ADDRESS LISTEN FOLDER`."""

import asyncio
import sys
from pathlib import Path

from podrace.client import Client
from podrace.dashboard.gateway import serving
from podrace.dashboard.settings import DashboardSettings


async def serve(address: str, listen: str, folder: Path) -> None:
    """Serves until the process is stopped; logs and the token are in the folder."""
    settings = DashboardSettings(listen, token_file=folder / "token", logs=folder / "logs")
    async with Client(address) as client, serving(settings, client) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
