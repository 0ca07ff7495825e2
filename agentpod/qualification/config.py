"""Defines the configuration of the processes of a qualification."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class QualifyConfig:
    """The whole report, as a container prints it."""

    parts: tuple[str, ...] = ()
    """Names of the parts to run; empty: all."""
    quick: bool = False
    """Whether to measure for a shorter time, and train for less."""
    gpus: tuple[str, ...] = ()
    """GPUs to examine, by UUID; empty: all that are visible."""
    node: int = 0
    """Number of this node, for the part `nodes`."""
    meet: str = ""
    """`host:port` at which node 0 of two waits for node 1; empty: there is one node."""
    orchestrator: str = ""
    """Address of an orchestrator whose launcher the part `planes` examines; empty: none."""
    file: str = ""
    """File that the report is also written to as JSON; empty: none."""
    debug: bool = False
    """Whether to show the logs of the parts."""


@dataclass(frozen=True)
class QualificationConfig:
    """The process of one part."""

    part: str
    """Key of podrace.qualification.parts.PARTS."""
    folder: Path
    """Empty folder for everything that the part writes. Its path must be short, see PodConfig."""
    quick: bool = False
    """As in QualifyConfig."""
    gpus: tuple[str, ...] = ()
    """As in QualifyConfig."""
    node: int = 0
    """As in QualifyConfig."""
    meet: str = ""
    """As in QualifyConfig."""
    orchestrator: str = ""
    """As in QualifyConfig."""
    lifeline: str = ""
    """Lifeline of the process that this one must not outlive; empty: none."""
