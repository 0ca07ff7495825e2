"""Implements `podrace export`: writes a champion, or an ensemble, as files that run without podrace."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from google.protobuf import json_format

from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.cli import session
from podrace.cli.commands.ensemble import best_of_agents, checkpoint_of
from podrace.cli.results.model_card import ExportedMember, card, card_text
from podrace.cli.results.worker import run_module
from podrace.cli.terminal.atomic_file import whole_file
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import show, show_json
from podrace.client import Client
from podrace.client.delivery import CheckpointFetcher, FetchedCheckpoint
from podrace.client.named_checkpoints import find_checkpoints, names_tournament
from podrace.errors import InvalidArgument
from podrace.mesh.home_lock import Use
from podrace.qualification.supervision import check_installed
from podrace.tournament.v1.tournament_pb2 import Tournament

FORMATS = ("onnx", "torch")


@click.command()
@click.argument("subject", metavar="TOURNAMENT|CANDIDATE")
@click.option("--top", type=click.IntRange(min=1), help="Export the best of this many agents as an ensemble.")
@click.option(
    "--format", "formats", multiple=True, type=click.Choice(FORMATS), help="Format; repeatable.  [default: onnx]"
)
@click.option(
    "--folder", type=click.Path(path_type=Path), default=None, help="Folder to write to.  [default: ID-policy]"
)
@click.option("--agent", default="", help="Agent of the environment, if agents have separate parameters.")
@mesh_options
def export(
    settings: Settings, subject: str, top: int | None, formats: Sequence[str], folder: Path | None, agent: str
) -> int:
    """Export a champion or another candidate as ONNX or torch.export.

    Writes policy.onnx or policy.pt2, which include normalization and the scaling of actions, and a model card. The
    files are compared with the torch policy on random and on recorded observations, and written only if all actions
    agree.
    TOURNAMENT and CANDIDATE are those of `podrace evaluate`.
    """
    session.require_tournaments(settings)
    check_installed("export")

    async def command(interrupts: Interrupts) -> int:
        async with session.open_client(settings, Use.QUERY, interrupts) as client:
            tournament, checkpoints = await find_checkpoints(client, subject, where=settings.where)
            if top:
                if not names_tournament(subject, tournament):
                    raise InvalidArgument(f"--top: {subject} is one candidate; name its tournament, or leave out --top")
                board = await client.list_board(tournament)
                checkpoints = [checkpoint_of(candidate) for candidate in best_of_agents(board, top)]
            fetched = await _fetched(tournament, checkpoints)
            members = [await _member(client, tournament, one) for one in fetched]
        target = folder or Path(f"{tournament.tournament_id}-policy")
        facts = await _export(fetched, members, tournament, formats or FORMATS[:1], target, agent)
        if settings.as_json:
            show_json(facts | {"folder": str(target)})
        else:
            show(f"{target}: {', '.join([*facts['files'], 'README.md', 'card.json'])}")
        return 0

    return session.run(command)


async def _fetched(tournament: Tournament, checkpoints: Sequence[Checkpoint]) -> list[FetchedCheckpoint]:
    async with CheckpointFetcher(tournament.leaderboard_address, tournament.tournament_id) as fetcher:
        return [await fetcher.fetch(one.manifest_digest) for one in checkpoints]


async def _member(client: Client, tournament: Tournament, fetched: FetchedCheckpoint) -> ExportedMember:
    kin = await client.get_lineage(tournament, fetched.manifest.agent_id)
    return ExportedMember(fetched.manifest_digest, fetched.manifest, [agent.agent_id for agent in kin[1:]])


async def _export(
    fetched: Sequence[FetchedCheckpoint],
    members: Sequence[ExportedMember],
    tournament: Tournament,
    formats: Sequence[str],
    target: Path,
    agent: str,
) -> dict[str, Any]:
    """Runs the export in a child process, which imports torch, and writes its files and the model card."""
    with tempfile.TemporaryDirectory(prefix="podrace-export-") as name:
        work = Path(name)
        for one in fetched:
            (work / one.manifest_digest).mkdir()
            (work / one.manifest_digest / "manifest.json").write_bytes(one.manifest_json)
            for part in ("policy", "test_vectors"):
                if part in one.parts:
                    (work / one.manifest_digest / part).write_bytes(one.parts[part])
        request = {
            "members": [one.manifest_digest for one in fetched],
            "formats": list(formats),
            "agent": agent,
            "spec": json_format.MessageToDict(tournament.spec),
        }
        (work / "request.json").write_text(json.dumps(request))
        compared = json.loads(await run_module("agentpod.export", work, command="export"))
        facts = card(tournament, members, compared, agent)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"--folder {target}: cannot be created: {error.strerror}") from None
        contents = {file: (work / file).read_bytes() for file in facts["files"]}
    contents |= {"card.json": json.dumps(facts, indent=1).encode() + b"\n", "README.md": card_text(facts).encode()}
    for file, data in contents.items():
        with whole_file(target / file, "--folder") as incoming:
            incoming.write_bytes(data)
    return facts
