"""The examination of simulator services finds each broken one, and nothing wrong with sound ones."""

import foreign_simulators
import pytest
from google.protobuf.struct_pb2 import Struct
from reports import assert_found, untested, wrong
from third_party import served

from podrace import rpc
from podrace.conformance import simulator
from podrace.conformance.examine import judge_of, run_parts
from podrace.conformance.findings import Report
from podrace.simulator.v1.simulator_pb2_grpc import add_SimulatorServiceServicer_to_server as add


async def examined(address: str, *, environments: int = 1000, most_seconds: float = 2.0) -> Report:
    judge = judge_of("simulator")
    async with rpc.connect(address, third_party=True) as channel:
        parts = simulator.parts(
            channel, judge, id="walk", options=Struct(), most_seconds=most_seconds, environments=environments
        )
        return await run_parts("simulator", address, judge, parts, most_seconds=60.0)


async def test_a_simulator_that_keeps_the_contract_passes() -> None:
    with served(add, foreign_simulators.Simulator()) as address:
        report = await examined(address)
    assert wrong(report) == {}
    assert report.conforms
    assert untested(report) == {"split-actions", "unseen-memory"}


class Small(foreign_simulators.Simulator):
    """Allows fewer environments than the examination opens elsewhere."""

    maximum = 3


async def test_no_more_environments_are_opened_than_the_service_allows() -> None:
    with served(add, Small()) as address:
        report = await examined(address)
    assert wrong(report) == {}
    assert report.conforms


@pytest.mark.parametrize("service", foreign_simulators.BROKEN, ids=lambda service: service.__name__)
async def test_a_broken_simulator_is_found_by_the_words_of_the_contract(service: type) -> None:
    large = service is foreign_simulators.LongMessages
    with served(add, service()) as address:
        report = await examined(address, environments=100_000 if large else 1000, most_seconds=20.0 if large else 2.0)
    assert not report.conforms
    assert not report.unfinished
    assert_found(report, service.breaks)
