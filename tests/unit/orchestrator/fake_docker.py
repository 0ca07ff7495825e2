"""Fakes a Docker Engine in memory, as far as the launcher uses docker.DockerClient."""

from dataclasses import dataclass, field
from typing import Any

import docker.errors

GIB = 1 << 30


@dataclass
class Container:
    engine: "Engine"
    arguments: dict[str, Any]
    status: str = "running"
    signals: list[str] = field(default_factory=list)
    log: bytes = b""
    attrs: dict[str, Any] = field(
        default_factory=lambda: {"Created": "2026-11-21T10:00:00.123456789Z", "State": {"ExitCode": 3}}
    )

    @property
    def name(self) -> str:
        return str(self.arguments["name"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.arguments["labels"])

    def kill(self, signal: str) -> None:
        self._check_exists()
        self.signals.append(signal)

    def remove(self, *, force: bool, v: bool) -> None:
        self._check_exists()
        self.engine.removed.append(self.name)
        del self.engine.running[self.name]

    def _check_exists(self) -> None:
        """The engine finds a container by its id, not by its name."""
        if self.engine.running.get(self.name) is not self:
            raise docker.errors.NotFound("no such container")

    def logs(self, tail: int) -> bytes:
        return self.log


@dataclass
class Images:
    engine: "Engine"

    def get(self, name: str) -> None:
        self.engine._fail(f"image {name}")


class Engine:
    """The part of docker.DockerClient that the launcher uses."""

    def __init__(self) -> None:
        self.running: dict[str, Container] = {}
        self.removed: list[str] = []
        self.volume_options: dict[str, dict[str, str]] = {}
        self.volume_labels: dict[str, dict[str, str]] = {}
        self.failures: dict[str, Exception] = {}
        self.containers = self
        self.volumes = Volumes(self)
        self.images = Images(self)

    def list(self, *, all: bool, filters: dict[str, Any], ignore_removed: bool) -> list[Container]:
        self._fail("list")
        wanted = dict(label.split("=", 1) for label in filters["label"])
        return [c for c in self.running.values() if wanted.items() <= c.labels.items()]

    def run(self, **arguments: Any) -> None:
        self._fail("run")
        self._fail(arguments["name"])
        self.running[arguments["name"]] = Container(self, arguments)

    def info(self) -> dict[str, Any]:
        return {"MemTotal": 16 * GIB, "NCPU": 8}

    def close(self) -> None:
        pass

    def _fail(self, what: str) -> None:
        if what in self.failures:
            raise self.failures[what]


@dataclass
class Volume:
    engine: Engine
    name: str

    @property
    def attrs(self) -> dict[str, Any]:
        return {"Labels": self.engine.volume_labels[self.name]}

    def remove(self, *, force: bool) -> None:
        if self.name not in self.engine.volume_options:
            raise docker.errors.NotFound("no such volume")
        del self.engine.volume_options[self.name]


@dataclass
class Volumes:
    engine: Engine

    def create(self, name: str, *, driver: str, driver_opts: dict[str, str], labels: dict[str, str]) -> None:
        self.engine.volume_options[name], self.engine.volume_labels[name] = driver_opts, labels

    def list(self, *, filters: dict[str, Any]) -> list[Volume]:
        wanted = dict(label.split("=", 1) for label in filters["label"])
        found = [
            name for name in self.engine.volume_options if wanted.items() <= self.engine.volume_labels[name].items()
        ]
        return [Volume(self.engine, name) for name in found]
