"""Implements `podrace doctor`."""

import asyncio
from pathlib import Path

import click
from rich.text import Text

from podrace import __version__
from podrace.cli.doctor import cluster, gpu, judgement, survey
from podrace.cli.doctor.diagnosis import Diagnosis, Severity, exit_code, report_value, summary
from podrace.cli.terminal.options import Settings, mesh_options
from podrace.cli.terminal.output import console, notify, show, show_json
from podrace.mesh.home import Folders
from podrace.printable import printable

STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}
INDENT = " " * 20


@click.command()
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also check the rights of the orchestrator in the cluster of this file.",
)
@click.option("--namespace", default="default", show_default=True, help="Namespace of the orchestrator.")
@click.option(
    "--as",
    "account",
    default="",
    metavar="ACCOUNT",
    help="Check the rights of this account.  [default: that of the file]",
)
@click.option(
    "--manifests",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Also render this folder, or read this file, of Kubernetes manifests.",
)
@mesh_options
def doctor(settings: Settings, kubeconfig: Path | None, namespace: str, account: str, manifests: Path | None) -> int:
    """Check whether podrace works here, and say how to fix what does not.

    Each line is ok, a warning or an error; a warning or an error is followed by what to do. Nothing is created except a
    probe object in the checkpoint store. The exit code is 1 if there is an error, otherwise 0.

    `podrace qualify` tests GPUs in depth, and measures their speed.
    """
    kubectl = cluster.Kubectl(kubeconfig, namespace, account)
    found = asyncio.run(_examine(settings, kubectl, manifests))
    if settings.as_json:
        show_json(report_value(found))
    else:
        for diagnosis in found:
            _show(diagnosis)
        show(summary(found))
    return exit_code(found)


async def _examine(settings: Settings, kubectl: cluster.Kubectl, manifests: Path | None) -> list[Diagnosis]:
    remote = bool(settings.orchestrator)
    folders = Folders.of(settings.home)
    found = list(judgement.judge_machine(survey.read_machine(folders)))
    extras = survey.extras_of(survey.read_requirements())
    training = extras.get(survey.TRAINING, [])
    listed = {name: extras[name] for name in survey.OPTIONAL if name in extras}
    versions = survey.read_packages([*training, *(name for names in listed.values() for name in names)])
    found += judgement.judge_packages(versions, training, listed, remote=remote)
    found += await gpu.examine(debug=settings.debug)
    found += judgement.judge_home(survey.read_home(folders))
    if settings.store or not remote:
        found += judgement.judge_store(await asyncio.to_thread(survey.read_store, folders, settings.store))
    found += [judgement.judge_port(survey.read_port(service, port)) for service, port in survey.PORTS.items()]
    if remote:
        notify(f"asking {settings.orchestrator}")
        found += judgement.judge_server(await survey.read_server(settings.orchestrator), __version__)
    if kubectl.has_cluster:
        notify(f"asking the cluster about namespace {kubectl.namespace}")
        found += judgement.judge_cluster(await cluster.read_cluster(kubectl), cluster.WISHES)
    if manifests:
        found.append(judgement.judge_manifests(await cluster.read_manifests(kubectl, manifests)))
    return found


def _show(diagnosis: Diagnosis) -> None:
    head = f"  {diagnosis.area:<9}  {diagnosis.name:<16}  {diagnosis.found}"
    line = Text.assemble((f"{diagnosis.severity.value:<7}", STYLES[diagnosis.severity]), printable(head))
    console().print(line, soft_wrap=True)
    if diagnosis.remedy:
        show(f"{INDENT}{diagnosis.remedy}")
