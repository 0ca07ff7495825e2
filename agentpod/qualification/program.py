"""Runs all parts of a qualification and prints the report: `python -m agentpod qualify`, in an image."""

import asyncio
import json
import time
from pathlib import Path

from agentpod.qualification.config import QualifyConfig
from podrace import __version__
from podrace.qualification import page, supervision
from podrace.qualification.findings import Finding, exit_code, report_value
from podrace.qualification.parts import chosen_parts


def main(config: QualifyConfig) -> int:
    """Prints the report and returns the exit code.

    Raises:
        InvalidArgument: There is no part of a name.
        FailedPrecondition: PyTorch is not installed.
    """
    supervision.check_installed()
    wanted = {"gpus": ",".join(config.gpus), "node": str(config.node), "meet": config.meet}
    wanted["orchestrator"] = config.orchestrator
    settings = {key: value for key, value in wanted.items() if value}
    request = supervision.Request(chosen_parts(config.parts), config.quick, settings, config.debug)
    started = time.monotonic()
    findings = asyncio.run(supervision.run(request, _show))
    seconds = time.monotonic() - started
    print(page.summary(findings, seconds), flush=True)
    if config.file:
        Path(config.file).write_text(json.dumps(report_value(findings, seconds, __version__), indent=1) + "\n")
    return exit_code(findings)


def _show(finding: Finding) -> None:
    for line in page.lines_of(finding):
        print(line, flush=True)
