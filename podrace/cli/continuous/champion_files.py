"""Writes the champion of a continuous training into a folder that a policy server follows."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from podrace.cli.continuous.journal import ScoredAgent
from podrace.cli.terminal.atomic_file import whole_file
from podrace.client.delivery import CheckpointFetcher
from podrace.errors import FailedPrecondition, InvalidArgument, Unimplemented
from podrace.tournament.v1.tournament_pb2 import Tournament

CHAMPION = "champion"
"""Name of the folder, in that of the training."""
MODEL, FACTS = "policy.onnx", "champion.json"
PACKAGES = ("numpy", "onnxruntime")


async def deliver(tournament: Tournament, champion: ScoredAgent, folder: Path, notify: Callable[[str], None]) -> None:
    """Replaces the champion in a folder. A policy server that follows the folder swaps it in.

    The policy is compared with the test vectors of its checkpoint. If it cannot be written as ONNX, the folder keeps
    the previous champion, and `notify` receives the reason.

    Args:
        tournament: The tournament of the champion.
        champion: The champion, or its members if it is an ensemble.
        folder: The folder, which is made.
        notify: Receives lines for the user.

    Raises:
        PodraceError: The leaderboard does not answer, or the checkpoint is damaged; try again.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        notify(f"{folder} is not updated: that needs {', '.join(missing)}: pip install 'podrace[policy]'")
        return
    from podrace.policy.loading import checked_onnx_file

    digests = [champion.manifest_digest, *(member.manifest_digest for member in champion.members)]
    async with CheckpointFetcher(tournament.leaderboard_address, tournament.tournament_id) as fetcher:
        fetched = [await fetcher.fetch(digest) for digest in digests]
    try:
        model = await asyncio.to_thread(checked_onnx_file, fetched)
    except (FailedPrecondition, InvalidArgument, Unimplemented) as error:
        notify(f"{folder} keeps the previous champion: {champion.agent_id} cannot be written as ONNX: {error.message}")
        return
    facts = asdict(champion)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in ((FACTS, json.dumps(facts, indent=1).encode() + b"\n"), (MODEL, model)):
        with whole_file(folder / name) as incoming:
            incoming.write_bytes(data)
