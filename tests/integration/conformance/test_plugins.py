"""The examination of generators and updaters finds each broken one, and nothing wrong with sound ones."""

from typing import Any

import foreign_plugins
import grpc
import pytest
from reports import assert_found, untested, wrong
from third_party import served

from podrace import rpc
from podrace.conformance import evolution
from podrace.conformance.examine import judge_of, run_parts
from podrace.conformance.findings import Report
from podrace.evolution.v1.evolution_pb2 import FreshProposal, ProposeAgentResponse
from podrace.evolution.v1.evolution_pb2_grpc import add_EvolutionServiceServicer_to_server as add

ADVICE = (foreign_plugins.Capricious, foreign_plugins.CountsCalls)
"""Plugins that the contract allows, and that make tournaments which cannot be repeated."""


async def examined(address: str) -> Report:
    judge = judge_of("evolution")
    async with rpc.connect(address, third_party=True) as channel:
        parts = evolution.parts(channel, judge, spec=None, most_seconds=2.0)
        return await run_parts("evolution", address, judge, parts, most_seconds=60.0)


async def test_a_plugin_that_keeps_the_contract_passes() -> None:
    with served(add, foreign_plugins.Plugin()) as address:
        report = await examined(address)
    assert wrong(report) == {}
    assert report.conforms
    assert untested(report) <= {"error-details"}


class OnlyFresh(foreign_plugins.Plugin):
    """Proposes no children."""

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        return ProposeAgentResponse(fresh=FreshProposal(), reason="all are new")


class OnlyJudges(foreign_plugins.Plugin):
    """Is named for judgements only."""

    def ProposeAgent(self, request: Any, context: Any) -> ProposeAgentResponse:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "this plugin judges only")


async def test_rules_of_children_are_not_examined_without_a_child() -> None:
    with served(add, OnlyFresh()) as address:
        report = await examined(address)
    assert report.conforms
    assert untested(report) == {"parent", "child-algorithm", "structure", "error-details"}


async def test_a_plugin_may_implement_one_of_the_methods() -> None:
    with served(add, OnlyJudges()) as address:
        report = await examined(address)
    assert report.conforms
    assert {"proposal-set", "fresh-algorithm", "parent"} <= untested(report)


@pytest.mark.parametrize("service", foreign_plugins.BROKEN, ids=lambda service: service.__name__)
async def test_a_broken_plugin_is_found_by_the_words_of_the_contract(service: type) -> None:
    with served(add, service()) as address:
        report = await examined(address)
    assert report.conforms == (service in ADVICE)
    assert_found(report, service.breaks)
