"""Implements `podrace conform`: checks whether a service conforms to its contract, and shows what it violates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from podrace.cli import EXIT_FAILED, session
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import FiniteRange, output_options, parse_options
from podrace.cli.terminal.output import notify, show, show_json
from podrace.conformance.examine import CONTRACTS
from podrace.conformance.findings import Report, RequirementState, line, report_value
from podrace.conformance.sessions import Examination, check_address, examine, read_token
from podrace.errors import InvalidArgument
from podrace.specification.files import load

_FILE = click.Path(path_type=Path)
SHOWN = (RequirementState.VIOLATED, RequirementState.ADVISED)
"""Findings that are shown without --all."""


@click.command()
@click.argument("address")
@click.option("--as", "contract", type=click.Choice(CONTRACTS), required=True, help="What ADDRESS is.")
@click.option("--id", "id", default="cartpole", show_default=True, help="Name of the simulator to examine.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the simulator or environment; repeatable.",
)
@click.option(
    "--environments",
    default=1024,
    show_default=True,
    type=click.IntRange(min=1, max=1_000_000),
    help="Environments in the largest batch of a simulator.",
)
@click.option(
    "--environment", default="CartPole-v1", show_default=True, help="Environment of an evaluator, a worker or a pod."
)
@click.option("--observations", type=click.IntRange(1, 2**24), help="Length of an observation of --environment.")
@click.option(
    "--actions",
    type=click.IntRange(1, 2**24),
    help="Number of actions to choose from; with --continuous, length of an action.",
)
@click.option("--continuous", is_flag=True, help="The actions of --environment are continuous.")
@click.option("--spec", type=_FILE, help="Specification of the tournament of a generator, an updater or a pod.")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="ADDRESS",
    help="Where an evaluator or a worker reads tensors.",
)
@click.option("--insecure", is_flag=True, help="Listen on an address that other machines reach, without TLS.")
@click.option("--token-file", type=_FILE, help="File with a token to send with every call.")
@click.option(
    "--deadline",
    "deadline_seconds",
    default=60.0,
    show_default=True,
    type=FiniteRange(min=0.1, max=1800.0),
    metavar="SECONDS",
    help="Longest wait for one answer; shorter where the contract demands it.",
)
@click.option(
    "--seconds",
    "most_seconds",
    default=300.0,
    show_default=True,
    type=FiniteRange(min=1.0),
    metavar="SECONDS",
    help="Time limit of the whole check.",
)
@click.option(
    "--lease",
    "lease_seconds",
    default=3.0,
    show_default=True,
    type=FiniteRange(min=0.5, max=60.0),
    metavar="SECONDS",
    help="Duration of the leases of a pod.",
)
@click.option("--store", default="", metavar="URI", help="Store that a pod writes to.  [default: StoreService]")
@click.option("--all", "everything", is_flag=True, help="Also show the requirements that are met or were not examined.")
@output_options
def conform(address: str, everything: bool, as_json: bool, debug: bool, **given: Any) -> int:
    """Check whether a service conforms to its contract.

    ADDRESS is the address of the service. A pod makes calls and receives none: with --as pod, this command listens on
    ADDRESS as orchestrator and leaderboard, and you start the pod with this address. Each line names a
    requirement that is violated, what was observed, what the contract says, and what to do. The exit code is 0 if
    nothing is violated, otherwise 1.
    """
    wanted = _examination(address, **given)

    async def command(interrupts: Interrupts) -> int:
        report = await examine(wanted)
        if as_json:
            show_json(report_value(report))
        else:
            show_report(report, everything=everything)
        return 0 if report.conforms else EXIT_FAILED

    return session.run(command)


def _examination(
    address: str,
    *,
    options: Sequence[str],
    observations: int | None,
    actions: int | None,
    continuous: bool,
    spec: Path | None,
    token_file: Path | None,
    **given: Any,
) -> Examination:
    check_address(address)
    if (observations is None) != (actions is None):
        raise InvalidArgument("--observations and --actions: state both or none")
    return Examination(
        address=address,
        options=parse_options(options),
        spaces=(observations, actions, continuous) if observations and actions else None,
        spec=load(spec) if spec else None,
        token=read_token(token_file) if token_file else None,
        notify=notify,
        **given,
    )


def show_report(report: Report, *, everything: bool) -> None:
    """Prints what is violated, or all findings, and the verdict."""
    for finding in report.findings:
        if everything or finding.grade in SHOWN:
            show(line(finding))
    counts = ", ".join(f"{number} {grade.lower()}" for grade, number in report.counts().items() if number)
    verdict = "conforms" if report.conforms else "does not conform"
    if report.unfinished and not report.counts()[RequirementState.VIOLATED]:
        verdict = "was not examined completely, so it is not known to conform"
    ended = f"; {report.unfinished}" if report.unfinished else ""
    contract, seconds = _ARTICLES[report.contract], f"{report.seconds:.1f} s"
    notify(f"{report.address} {verdict} to the contract of {contract}: {counts}; {seconds}{ended}")


_ARTICLES = {
    "simulator": "a simulator",
    "evolution": "a generator or updater",
    "evaluator": "an evaluator",
    "worker": "a worker",
    "pod": "a pod",
}
