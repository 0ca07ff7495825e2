from collections.abc import Callable, Mapping, Sequence

from leaderboard.ranking.lineage_summary import Summaries
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, AgentSummary, Candidate

MakeCandidate = Callable[..., Candidate]


def summaries_of(
    agents: Sequence[Agent], depths: Mapping[str, int], candidates: Sequence[Candidate]
) -> list[AgentSummary]:
    summaries = Summaries(agents, depths)
    for candidate in candidates:
        summaries.add(candidate)
    return summaries.found()


def test_an_agent_is_summarized_by_its_submissions(make_candidate: MakeCandidate) -> None:
    parent = make_candidate(0, 5.0, candidate_id="start", environment_steps=1000, agent_environment_steps=1000)
    good = make_candidate(1, 9.0, environment_steps=1500, agent_environment_steps=500, core_seconds=3.0)
    last = make_candidate(1, 7.0, environment_steps=3000, agent_environment_steps=2000, core_seconds=12.0)
    child = Agent(agent_id=good.agent_id, starting_checkpoint=Checkpoint(manifest_digest="start"))
    unscored = Agent(agent_id="t-a2", starting_checkpoint=Checkpoint(manifest_digest="start"))
    summary, unscored_summary = summaries_of([child, unscored], {child.agent_id: 1, "t-a2": 1}, [parent, good, last])
    assert (summary.agent_id, summary.depth, summary.submissions) == (good.agent_id, 1, 2)
    assert (summary.environment_steps, summary.lineage_environment_steps, summary.core_seconds) == (2000, 3000, 12.0)
    assert (summary.best, summary.last) == (good, last)
    assert summary.learning_speed == (7.0 - 5.0) / 2000
    assert (
        unscored_summary.submissions,
        unscored_summary.environment_steps,
        unscored_summary.lineage_environment_steps,
    ) == (0, 0, 1000)
    assert not unscored_summary.HasField("best")
    assert not unscored_summary.HasField("learning_speed")


def test_summaries_come_in_the_order_of_the_agents(make_candidate: MakeCandidate) -> None:
    candidates = [make_candidate(number, float(number)) for number in range(3)]
    agents = [Agent(agent_id=candidate.agent_id) for candidate in reversed(candidates)]
    summaries = summaries_of(agents, {agent.agent_id: 0 for agent in agents}, candidates)
    assert [summary.last.score for summary in summaries] == [2.0, 1.0, 0.0]
