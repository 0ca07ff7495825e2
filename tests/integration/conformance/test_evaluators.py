"""The examination of evaluators finds each broken one, and nothing wrong with sound ones."""

import foreign_evaluators
import pytest
from reports import assert_found, untested, wrong
from third_party import served

from podrace import rpc
from podrace.agentpod.v1.agentpod_pb2_grpc import add_EvaluatorServiceServicer_to_server as add
from podrace.conformance import evaluator, policies
from podrace.conformance.examine import judge_of, run_parts, tensor_server
from podrace.conformance.findings import Report
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec

POLICY = policies.listed(policies.network(), 4, 2, continuous=False)


async def examined(address: str) -> Report:
    judge = judge_of("evaluator")
    async with rpc.connect(address, third_party=True) as channel, tensor_server("127.0.0.1:0") as blocks:
        environment = EnvironmentSpec(id="CartPole-v1", count=1)
        parts = evaluator.parts(channel, judge, blocks, environment=environment, policy=POLICY, most_seconds=2.0)
        return await run_parts("evaluator", address, judge, parts, most_seconds=60.0)


async def test_an_evaluator_that_keeps_the_contract_passes() -> None:
    with served(add, foreign_evaluators.Evaluator()) as address:
        report = await examined(address)
    assert wrong(report) == {}
    assert report.conforms
    assert untested(report) == set()


@pytest.mark.parametrize("service", foreign_evaluators.BROKEN, ids=lambda service: service.__name__)
async def test_a_broken_evaluator_is_found_by_the_words_of_the_contract(service: type) -> None:
    with served(add, service()) as address:
        report = await examined(address)
    assert not report.conforms
    assert not report.unfinished
    assert_found(report, service.breaks)
