"""Tests how a service starts and how it reports errors."""

import asyncio
from dataclasses import dataclass, field

import pytest

from podrace import service
from podrace.errors import FailedPrecondition
from podrace.telemetry import TelemetryConfig


@dataclass(frozen=True)
class Config:
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    folder: str = "here"


async def fail(config: Config) -> None:
    raise FailedPrecondition(f"folder {config.folder}: is in use; choose another")


def test_a_service_is_run_with_its_configuration() -> None:
    served: list[str] = []

    async def serve(config: Config) -> None:
        await asyncio.sleep(0)
        served.append(config.folder)

    assert service.run("tower", Config, serve, ["--set", "folder=there"]) == 0
    assert served == ["there"]


def test_an_error_of_a_service_is_reported_in_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert service.run("tower", Config, fail, []) == 2
    assert capsys.readouterr().err == "error: folder here: is in use; choose another\n"


def test_a_wrong_configuration_is_reported_in_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert service.run("tower", Config, fail, ["--set", "folder=7"]) == 2
    assert service.run("tower", Config, fail, ["--set", "floor=7"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") for line in lines] == [True, True]


def test_with_log_level_debug_the_error_is_raised() -> None:
    with pytest.raises(FailedPrecondition):
        service.run("tower", Config, fail, ["--set", "telemetry.log_level=debug"])


def test_other_exceptions_are_raised() -> None:
    async def serve(config: Config) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        service.run("tower", Config, serve, [])
