"""The launchers by name; each is imported when it is opened."""

from collections.abc import Callable

from orchestrator.launchers.base import LauncherContext, PodEnvironment
from orchestrator.launchers.options import LauncherOptions

LauncherFactory = Callable[[PodEnvironment, LauncherOptions, Callable[[], None]], LauncherContext]
"""Opens a launcher, given what its pods are told, its options, and what to call when a pod has died."""


def _process(
    pod_environment: PodEnvironment, options: LauncherOptions, on_death: Callable[[], None]
) -> LauncherContext:
    from orchestrator.launchers.process.launcher import ProcessLauncher

    return ProcessLauncher(pod_environment, on_death)


def _docker(pod_environment: PodEnvironment, options: LauncherOptions, on_death: Callable[[], None]) -> LauncherContext:
    from orchestrator.launchers.docker import DockerLauncher

    return DockerLauncher(pod_environment, options.docker)


def _kubernetes(
    pod_environment: PodEnvironment, options: LauncherOptions, on_death: Callable[[], None]
) -> LauncherContext:
    from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher

    return KubernetesLauncher(pod_environment, options.kubernetes)


EXTERNAL = "external"
"""The launcher that starts nothing; it is opened where the pods that come are known."""
LAUNCHERS: dict[str, LauncherFactory] = {"process": _process, "docker": _docker, "kubernetes": _kubernetes}
