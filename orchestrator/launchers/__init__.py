"""Lists the launchers by name; the module of each is imported when it is used."""

from collections.abc import Callable

from orchestrator.launchers.base import LauncherContext, PodEnvironment
from orchestrator.launchers.options import LauncherOptions

LauncherFactory = Callable[[PodEnvironment, LauncherOptions, Callable[[], None]], LauncherContext]
"""Creates a launcher from the settings that all pods share, its options, and a function to call when a pod has died."""


def _process(
    pod_environment: PodEnvironment, options: LauncherOptions, on_death: Callable[[], None]
) -> LauncherContext:
    from orchestrator.launchers.process.launcher import ProcessLauncher

    return ProcessLauncher(pod_environment, on_death, options=options.process)


def _docker(pod_environment: PodEnvironment, options: LauncherOptions, on_death: Callable[[], None]) -> LauncherContext:
    from orchestrator.launchers.docker import DockerLauncher

    return DockerLauncher(pod_environment, options.docker)


def _kubernetes(
    pod_environment: PodEnvironment, options: LauncherOptions, on_death: Callable[[], None]
) -> LauncherContext:
    from orchestrator.launchers.kubernetes.launcher import KubernetesLauncher

    return KubernetesLauncher(pod_environment, options.kubernetes)


EXTERNAL = "external"
"""Name of the launcher for external pods, which starts none; `orchestrator.__main__` creates it."""
LAUNCHERS: dict[str, LauncherFactory] = {"process": _process, "docker": _docker, "kubernetes": _kubernetes}
