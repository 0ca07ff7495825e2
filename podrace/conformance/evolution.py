"""Examines a generator or an updater: proposals, judgements, and whether equal requests get equal answers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from podrace.conformance import boards, proposals
from podrace.conformance.calls import OK, Answer, Caller
from podrace.conformance.findings import Judge
from podrace.evolution.v1 import evolution_pb2_grpc as pb_grpc
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

UNIMPLEMENTED = "UNIMPLEMENTED"
REPEATED = 6
"""Requests of each method that are sent again."""


@dataclass
class Plugin:
    """What is examined."""

    judge: Judge
    caller: Caller
    stub: Any
    spec: TournamentSpec
    seed: int = 0
    missing: list[str] = field(default_factory=list)
    """Methods that are not implemented."""

    async def ask(self, method: str, request: Any) -> Answer[Any]:
        """Calls a method within the time that the specification allows."""
        seconds = self.spec.evolution.answer_duration.ToTimedelta().total_seconds()
        return await self.caller.call(getattr(self.stub, method), request, "deadline", contract_seconds=seconds or 5.0)


def parts(
    channel: grpc.aio.Channel, judge: Judge, *, spec: TournamentSpec | None, most_seconds: float
) -> list[Callable[[], Awaitable[None]]]:
    """Returns the parts of the examination, in order."""
    stub: Any = pb_grpc.EvolutionServiceStub(channel)
    plugin = Plugin(judge, Caller(judge, most_seconds), stub, spec or boards.default_spec())
    return [
        lambda: examine_proposals(plugin),
        lambda: examine_judgements(plugin),
        lambda: examine_both_methods(plugin),
    ]


async def examine_proposals(plugin: Plugin) -> None:
    """Asks for agents in tournaments of every size."""
    requests = list(boards.proposal_requests(plugin.spec, plugin.seed))
    answers = list[Any]()
    for request in requests:
        where = f"a board of {len(request.candidates)}"
        answer = await _answer(plugin, "ProposeAgent", request, where, first=not answers)
        if answer is None:
            return
        rules = PROPOSAL_RULES + RULES_OF_KIND.get(answer.WhichOneof("proposal"), ())
        _record(plugin.judge, rules, proposals.of_proposal(request, answer))
        answers.append(answer)
    for kind, rules in RULES_OF_KIND.items():
        for rule in rules:
            plugin.judge.skip(rule, f"no answer proposed a {kind} agent")
    await _repeat(plugin, "ProposeAgent", requests, answers)


async def examine_judgements(plugin: Plugin) -> None:
    """Asks for judgements of candidates of every kind."""
    requests = list(boards.judgement_requests(plugin.spec, plugin.seed + 1))
    answers = list[Any]()
    for request in requests:
        where = f"a board of {len(request.board)}"
        answer = await _answer(plugin, "JudgeCandidate", request, where, first=not answers)
        if answer is None:
            return
        _record(plugin.judge, JUDGEMENT_RULES, proposals.of_judgement(answer))
        answers.append(answer)
    await _repeat(plugin, "JudgeCandidate", requests, answers)


PROPOSAL_RULES = ("proposal-set", "known-hyperparameters", "within-range", "size", "reason")
RULES_OF_KIND = {"fresh": ("fresh-algorithm",), "child": ("parent", "child-algorithm", "structure")}
"""Further rules of proposals, which only one kind of proposal can meet."""
JUDGEMENT_RULES = ("opinion", "rank-score", "size", "reason")
RULES = {
    "ProposeAgent": (*PROPOSAL_RULES, *RULES_OF_KIND["fresh"], *RULES_OF_KIND["child"]),
    "JudgeCandidate": JUDGEMENT_RULES,
}


def _record(judge: Judge, rules: Iterable[str], broken: Iterable[tuple[str, str]]) -> None:
    found = dict(broken)
    for rule in rules:
        judge.expect(rule, rule not in found, found.get(rule, ""))


async def _answer(plugin: Plugin, method: str, request: Any, where: str, *, first: bool) -> Any | None:
    """Returns the answer; None if the method is not implemented, which the answer to the first request says."""
    answer = await plugin.ask(method, request)
    if answer.code == UNIMPLEMENTED and first:
        plugin.missing.append(method)
        for rule in set(RULES[method]) - {"size", "reason"}:
            plugin.judge.skip(rule, f"{method} is not implemented")
        return None
    plugin.judge.require("answers", answer.code == OK, f"{method} with {where} is answered with {answer}")
    return answer.get()


async def _repeat(plugin: Plugin, method: str, requests: Sequence[Any], answers: Sequence[Any]) -> None:
    """Sends some requests again, the last one first."""
    step = max(1, len(requests) // REPEATED)
    for request, before in reversed(list(zip(requests, answers, strict=True))[::step]):
        answer = await plugin.ask(method, request)
        plugin.judge.require("answers", answer.code == OK, f"{method}: a repeated request is answered with {answer}")
        alike = answer.response == before
        plugin.judge.expect("repeats", alike, f"{method}: the same request got another answer the second time")


async def examine_both_methods(plugin: Plugin) -> None:
    """Calls both methods at the same time, as a leaderboard may."""
    both = len(plugin.missing) == 2
    plugin.judge.require("implements", not both, "both methods are UNIMPLEMENTED")
    if plugin.missing:
        return
    proposal = next(boards.proposal_requests(plugin.spec, plugin.seed))
    judgement = next(boards.judgement_requests(plugin.spec, plugin.seed))
    answers = await asyncio.gather(plugin.ask("ProposeAgent", proposal), plugin.ask("JudgeCandidate", judgement))
    for answer in answers:
        problem = f"with both methods called at the same time, one is answered with {answer}"
        plugin.judge.expect("answers", answer.code == OK, problem)
