"""Implements `podrace qualify`, which tests the GPUs of this machine in child processes; does not import torch."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click

from podrace import __version__
from podrace.cli import session
from podrace.cli.terminal.atomic_file import check_file, whole_file
from podrace.cli.terminal.interrupts import Interrupts
from podrace.cli.terminal.options import output_options
from podrace.cli.terminal.output import notify, show, show_json
from podrace.qualification import page, supervision
from podrace.qualification.findings import Finding, exit_code, report_value
from podrace.qualification.parts import PARTS, chosen_parts


@click.command()
@click.option("--quick", is_flag=True, help="Measure for a shorter time, and train for less.")
@click.option(
    "--part", "parts", multiple=True, metavar="NAME", help=f"Run this part only (repeatable): {', '.join(PARTS)}."
)
@click.option("--gpus", default="", metavar="UUID,...", help="GPUs to test.  [default: all that are visible]")
@click.option(
    "--node", default=0, metavar="INDEX", type=click.IntRange(min=0), help="Number of this node, for the part nodes."
)
@click.option("--meet", default="", metavar="HOST:PORT", help="Where node 0 of two waits for node 1.")
@click.option(
    "--orchestrator",
    default="",
    metavar="ADDRESS",
    help="Also start pods on each plane by the launcher of this running orchestrator (part planes).",
)
@click.option(
    "--file", "path", default=None, type=click.Path(path_type=Path), help="Also write the report as JSON to this file."
)
@output_options
def qualify(
    quick: bool,
    parts: Sequence[str],
    gpus: str,
    node: int,
    meet: str,
    orchestrator: str,
    path: Path | None,
    as_json: bool,
    debug: bool,
) -> int:
    """Test and measure the GPUs of this machine: whether podrace works on them, and how fast.

    Takes about 15 minutes on one GPU. Each line of the report is PASS, SLOW, FAIL or ABSENT. The exit code is 0 if
    something passed and nothing failed.
    """
    supervision.check_installed()
    if path:
        check_file(path, "--file")
    wanted = {"gpus": gpus, "node": str(node), "meet": meet, "orchestrator": orchestrator}
    settings = {key: value for key, value in wanted.items() if value}
    request = supervision.Request(chosen_parts(parts), quick, settings, debug)
    started = time.monotonic()
    findings: list[Finding] = []

    def shown(finding: Finding) -> None:
        for line in page.lines_of(finding):
            (notify if as_json else show)(line)

    async def command(interrupts: Interrupts) -> int:
        findings.extend(await supervision.run(request, shown))
        return exit_code(findings)

    code = session.run(command)
    report = report_value(findings, time.monotonic() - started, __version__)
    if findings:
        (notify if as_json else show)(page.summary(findings, time.monotonic() - started))
    if as_json:
        show_json(report)
    if path:
        with whole_file(path, "--file") as temporary:
            temporary.write_text(json.dumps(report, indent=1) + "\n")
    return code
