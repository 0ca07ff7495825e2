"""Asks a Kubernetes cluster, with kubectl, whether an account has the rights of the orchestrator; renders manifests."""

import asyncio
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from podrace.cli.doctor.readings import ClusterReading, ManifestReading
from podrace.printable import printable

DEADLINE_SECONDS = 20.0
"""Time limit of one call of kubectl."""
AT_A_TIME = 4
"""Calls of kubectl at a time."""
RIGHTS: dict[str, Sequence[str]] = {
    "create jobs": ("create", "jobs.batch"),
    "list jobs": ("list", "jobs.batch"),
    "delete jobs": ("delete", "jobs.batch"),
    "list pods": ("list", "pods"),
    "delete pods": ("delete", "pods"),
    "get logs of pods": ("get", "pods", "--subresource=log"),
    "create configmaps": ("create", "configmaps"),
    "get configmaps": ("get", "configmaps"),
    "list configmaps": ("list", "configmaps"),
    "delete configmaps": ("delete", "configmaps"),
    "create secrets": ("create", "secrets"),
    "create events": ("create", "events"),
    "list events": ("list", "events"),
    "list resourcequotas": ("list", "resourcequotas"),
    "get podtemplates/podrace-agentpod": ("get", "podtemplates/podrace-agentpod"),
}
"""What the orchestrator does in its namespace, and the arguments of `kubectl auth can-i`."""
WISHES: dict[str, Sequence[str]] = {
    "list nodes": ("list", "nodes"),
    "list pods of all namespaces": ("list", "pods", "--all-namespaces"),
}
"""What it does in the whole cluster."""
_OBJECT = re.compile(r"^kind: ", re.MULTILINE)


class Kubectl:
    """Calls kubectl with the options that choose the cluster."""

    def __init__(self, kubeconfig: Path | None, namespace: str, account: str = "") -> None:
        """Creates the caller.

        Args:
            kubeconfig: File that describes the cluster; None: no cluster.
            namespace: Namespace of the orchestrator.
            account: Account whose rights are checked; empty: the one in the file.
        """
        self.has_cluster = kubeconfig is not None
        self.namespace = namespace
        self._options = [f"--kubeconfig={kubeconfig}", f"--namespace={namespace}"] if kubeconfig else []
        self._account = [f"--as={account}"] if account else []
        self._turns = asyncio.Semaphore(AT_A_TIME)

    async def ask(self, *arguments: str, text: str | None = None, as_account: bool = False) -> tuple[int, str, str]:
        """Returns the exit code, the output and the last line of errors of one call."""
        options = [*self._options, *(self._account if as_account else [])]
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                "kubectl",
                *arguments,
                *options,
                stdin=asyncio.subprocess.PIPE if text is not None else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    out, errors = await process.communicate(text.encode() if text is not None else None)
            except TimeoutError:
                process.kill()
                await process.communicate()
                return 1, "", f"kubectl {arguments[0]} took longer than {DEADLINE_SECONDS:g} s"
        lines = errors.decode(errors="replace").strip().splitlines()
        return process.returncode or 0, out.decode(errors="replace"), printable(lines[-1]) if lines else ""


def missing_kubectl() -> str:
    """Returns why kubectl cannot be called; empty if it can."""
    return "" if shutil.which("kubectl") else "kubectl is not installed or not on PATH"


async def read_cluster(kubectl: Kubectl) -> ClusterReading:
    """Asks a cluster for its version, and whether each right is granted."""
    if problem := missing_kubectl():
        return ClusterReading(kubectl.namespace, problem)
    code, out, error = await kubectl.ask("get", "--raw", "/version")
    if code:
        return ClusterReading(kubectl.namespace, error or "the cluster does not answer")
    wanted = RIGHTS | WISHES
    answers = await asyncio.gather(*(kubectl.ask("auth", "can-i", *each, as_account=True) for each in wanted.values()))
    granted = {name: answer[1].strip() == "yes" for name, answer in zip(wanted, answers, strict=True)}
    return ClusterReading(kubectl.namespace, "", _version(out), granted)


async def read_manifests(kubectl: Kubectl, path: Path) -> ManifestReading:
    """Renders a folder with a kustomization, or reads a file; with a cluster, its API server checks every object."""
    if problem := missing_kubectl():
        return ManifestReading(str(path), problem)
    if path.is_dir():
        code, text, error = await Kubectl(None, "").ask("kustomize", str(path))
        if code:
            return ManifestReading(str(path), error or "cannot be rendered")
    else:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error_:
            return ManifestReading(str(path), f"cannot be read: {error_}")
    objects = len(_OBJECT.findall(text))
    if not objects:
        return ManifestReading(str(path), "has no objects")
    if not kubectl.has_cluster:
        return ManifestReading(str(path), "", objects)
    code, _, error = await kubectl.ask("apply", "--dry-run=server", "--filename=-", text=text)
    return ManifestReading(str(path), (error or "the API server refuses it") if code else "", objects, not code)


def _version(text: str) -> str:
    try:
        return printable(str(json.loads(text)["gitVersion"]))
    except (ValueError, KeyError, TypeError):
        return "of unknown version"
