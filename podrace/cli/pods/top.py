"""Implements `podrace top`: the pods of all running tournaments, with what they do and how fast."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.padding import Padding

from podrace.cli import session
from podrace.cli.session import find_tournament
from podrace.cli.terminal import formats
from podrace.cli.terminal.live_area import LiveArea
from podrace.cli.terminal.options import FiniteRange, Settings, mesh_options
from podrace.cli.terminal.output import console, show, show_json
from podrace.cli.views import json_shapes, tables
from podrace.client import Client
from podrace.client.calls.tournaments import END_STATES
from podrace.gpus import GIB
from podrace.orchestrator.v1.orchestrator_pb2 import GpuUse, Pod, SharedExperience
from podrace.printable import printable
from podrace.tournament.v1.tournament_pb2 import Tournament

DEFAULT_PERIOD_SECONDS = 2.0


@dataclass(frozen=True)
class Running:
    """A tournament that has not ended, and its pods."""

    tournament: Tournament
    pods: Sequence[Pod]


@click.command()
@click.argument("tournament", required=False)
@click.option("--once", is_flag=True, help="Show the present state and exit, as without a terminal.")
@click.option(
    "--period",
    default=DEFAULT_PERIOD_SECONDS,
    show_default=True,
    type=FiniteRange(min=0.2, max=3600.0),
    metavar="SECONDS",
    help="Time between two updates.",
)
@mesh_options
def top(settings: Settings, tournament: str | None, once: bool, period: float) -> int:
    """Show the pods of running tournaments, live until Ctrl-C.

    For each pod: what it does, its agent with its steps and steps per second, the policy lag, and the plane on which
    its tensors travel. Below, the use of each GPU. TOURNAMENT limits the table to one tournament; it is an id, a prefix
    of one, or `latest`.
    """

    async def query(client: Client) -> int:
        if settings.as_json or once or not sys.stdout.isatty():
            running = await _read(settings, client, tournament)
            if settings.as_json:
                show_json([as_json(each) for each in running])
            else:
                show(render(running))
            return 0
        with LiveArea(console()) as area:
            while True:
                area.show(render(await _read(settings, client, tournament)))
                await asyncio.sleep(period)

    session.require_tournaments(settings)
    return session.run_query(settings, query)


async def _read(settings: Settings, client: Client, name: str | None) -> list[Running]:
    found = [await find_tournament(client, name, settings)] if name else await client.list_tournaments()
    active = [each for each in found if each.state not in END_STATES]
    pods = await asyncio.gather(*(client.list_pods(each.tournament_id) for each in active))
    return [Running(tournament, listed) for tournament, listed in zip(active, pods, strict=True)]


def render(running: Sequence[Running]) -> RenderableType:
    """Returns one table for each tournament; a line if there is none. Pure."""
    if not running:
        return "no tournament is running"
    return Group(*(Padding(_tournament(each), (0, 0, 1, 0)) for each in running))


def _tournament(running: Running) -> RenderableType:
    tournament = running.tournament
    name = tournament.tournament_id
    title = "  ".join(
        [
            name,
            formats.state(tournament),
            f"{formats.count(tournament.steps_per_second)} steps/s",
            formats.things(len(running.pods), "pod"),
            *([f"paused: {tournament.pause_reason}"] if tournament.pause_reason else []),
        ]
    )
    waits = [
        printable(f"{formats.short(pod.pod_id, name)} waits: {pod.progress.storage_fault}")
        for pod in running.pods
        if pod.progress.storage_fault
    ]
    learned = [
        printable(f"{formats.short(pod.pod_id, name)} {_shared(pod.progress.shared_experience)}")
        for pod in running.pods
        if pod.progress.HasField("shared_experience")
    ]
    gpus = [
        printable(f"{formats.short(pod.pod_id, name)} {gpu.uuid}: {_use(gpu)}")
        for pod in running.pods
        for gpu in pod.progress.gpus
    ]
    return Group(tables.pods_table(running.pods, name, title=title), *gpus, *waits, *learned)


def _use(gpu: GpuUse) -> str:
    parts = [f"{gpu.utilization_percent} %"] if gpu.HasField("utilization_percent") else []
    if gpu.HasField("memory_used_bytes"):
        parts.append(f"{gpu.memory_used_bytes / GIB:.1f} of {gpu.memory_total_bytes / GIB:.1f} GiB")
    return ", ".join(parts) or "use not reported"


def _shared(experience: SharedExperience) -> str:
    received = (
        f"{formats.count(experience.environment_steps)} steps of {formats.things(experience.agents, 'other agent')}"
    )
    memory = (
        f"; keeps {formats.count(experience.memory_steps)}, on average {formats.duration(experience.age_seconds)} old"
        if experience.memory_steps
        else ""
    )
    left_out = f"; left out: {experience.left_out}" if experience.left_out else ""
    return f"also learns from {received}{memory}{left_out}"


def as_json(running: Running) -> dict[str, Any]:
    """Shape of one tournament in `top`."""
    return {
        "tournament_id": running.tournament.tournament_id,
        "state": formats.state(running.tournament),
        "pause_reason": running.tournament.pause_reason or None,
        "steps_per_second": running.tournament.steps_per_second,
        "pods": [
            json_shapes.pod(pod, {})
            | {
                "storage_fault": pod.progress.storage_fault or None,
                **_shared_json(pod.progress.shared_experience),
                "gpus": [_gpu(gpu) for gpu in pod.progress.gpus],
            }
            for pod in running.pods
        ],
    }


def _shared_json(experience: SharedExperience) -> dict[str, Any]:
    return {
        "foreign_steps": experience.environment_steps,
        "foreign_memory_steps": experience.memory_steps,
        "foreign_age_seconds": experience.age_seconds if experience.memory_steps else None,
        "left_out": experience.left_out or None,
    }


def _gpu(gpu: GpuUse) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "utilization_percent": gpu.utilization_percent if gpu.HasField("utilization_percent") else None,
        "memory_used_bytes": gpu.memory_used_bytes if gpu.HasField("memory_used_bytes") else None,
        "memory_total_bytes": gpu.memory_total_bytes if gpu.HasField("memory_total_bytes") else None,
    }
