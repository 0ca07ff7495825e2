"""The examination of workers finds each broken one, and nothing wrong with sound ones."""

import foreign_worker_policies
import foreign_workers
import pytest
from reports import assert_found, untested, wrong
from third_party import served

from podrace import rpc
from podrace.agentpod.v1.agentpod_pb2_grpc import add_WorkerServiceServicer_to_server as add
from podrace.conformance import worker
from podrace.conformance.examine import judge_of, run_parts, tensor_server
from podrace.conformance.findings import Report
from podrace.conformance.slots import ENVIRONMENTS
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec

BROKEN = [*foreign_workers.BROKEN, *foreign_worker_policies.BROKEN]


async def examined(address: str) -> Report:
    judge = judge_of("worker")
    async with rpc.connect(address, third_party=True) as channel, tensor_server("127.0.0.1:0") as blocks:
        environment = EnvironmentSpec(id="walk", count=ENVIRONMENTS)
        parts = worker.parts(channel, judge, blocks, environment=environment, most_seconds=10.0)
        return await run_parts("worker", address, judge, parts, most_seconds=60.0)


async def test_a_worker_that_keeps_the_contract_passes() -> None:
    with served(add, foreign_workers.Worker()) as address:
        report = await examined(address)
    assert wrong(report) == {}
    assert report.conforms
    assert untested(report) == set()


@pytest.mark.parametrize("service", BROKEN, ids=lambda service: service.__name__)
async def test_a_broken_worker_is_found_by_the_words_of_the_contract(service: type) -> None:
    with served(add, service()) as address:
        report = await examined(address)
    assert not report.conforms
    assert_found(report, service.breaks)
