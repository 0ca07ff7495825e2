"""The launchers by name; each is imported when it is opened."""

from collections.abc import Callable

from orchestrator.launchers.base import Opened, Surroundings
from orchestrator.launchers.options import LauncherOptions

Open = Callable[[Surroundings, LauncherOptions, Callable[[], None]], Opened]
"""Opens a launcher, given what its pods are told, its options, and what to call when a pod has died."""


def _process(surroundings: Surroundings, options: LauncherOptions, on_death: Callable[[], None]) -> Opened:
    from orchestrator.launchers.process.launcher import ProcessLauncher

    return ProcessLauncher(surroundings, on_death)


def _docker(surroundings: Surroundings, options: LauncherOptions, on_death: Callable[[], None]) -> Opened:
    from orchestrator.launchers.docker import DockerLauncher

    return DockerLauncher(surroundings, options.docker)


def _kubernetes(surroundings: Surroundings, options: LauncherOptions, on_death: Callable[[], None]) -> Opened:
    from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher

    return KubernetesLauncher(surroundings, options.kubernetes)


EXTERNAL = "external"
"""The launcher that starts nothing; it is opened where the pods that come are known."""
LAUNCHERS: dict[str, Open] = {"process": _process, "docker": _docker, "kubernetes": _kubernetes}
