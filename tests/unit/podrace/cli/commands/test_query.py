from typing import Any

import pytest

from podrace.cli import session
from podrace.client import Client
from podrace.client.calls import leaderboard
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.orchestrator.v1.orchestrator_pb2 import Event, ListEventsRequest


def test_ls_lists_every_tournament_of_every_page(type_: Any, mesh: Any, canned: Any) -> None:
    mesh.known.tournaments.append(canned.tournament("pendulum-xyz789", "FAILED"))
    answer = type_("ls", "--orchestrator", mesh.address, "--json")
    assert [entry["tournament_id"] for entry in answer.json] == ["cartpole-abc123", "pendulum-xyz789"]
    assert answer.json[0]["state"] == "COMPLETED"
    assert answer.json[0]["environment"] == "CartPole-v1"
    assert answer.json[0]["create_time"] == "1970-01-12T13:46:40Z"


def test_ls_of_a_home_without_tournaments_is_empty_and_creates_no_files(type_: Any, tmp_path: Any) -> None:
    assert type_("ls", "--json").json == []
    answer = type_("ls")
    assert answer.code == 0
    assert "no tournaments" in answer.out
    assert list(tmp_path.iterdir()) == []


def test_ls_shows_scores_steps_and_durations_in_readable_units(type_: Any, mesh: Any) -> None:
    out = type_("ls", "--orchestrator", mesh.address).out
    assert "cartpole-abc123" in out
    assert "480.0 ± 2.5" in out
    assert "1.2M" in out
    assert "0:42" in out


def test_standings_are_candidates_by_rank_with_the_documented_keys(type_: Any, mesh: Any) -> None:
    board = type_("standings", "latest", "--orchestrator", mesh.address, "--json").json
    assert [entry["rank"] for entry in board] == [1, 2, 3]
    documented = {
        "rank", "agent_id", "algorithm", "score", "standard_error", "episodes", "environment_steps", "parent_agent_ids",
    }  # fmt: skip
    assert documented <= set(board[0])
    assert board[0]["parent_agent_ids"] == ["cartpole-abc123-a1"]
    assert board[0]["environment_steps"] == 300_000


def test_standings_show_short_agent_names(type_: Any, mesh: Any) -> None:
    lines = type_("standings", "cart", "--orchestrator", mesh.address).out.splitlines()
    assert lines[0].strip() == "cartpole-abc123"
    assert lines[3].split() == ["1", "a2", "ppo", "480.0", "±", "2.5", "300k", "a1"]


def test_events_shows_all_events_or_those_of_a_kind(type_: Any, mesh: Any) -> None:
    left = Event(sequence=9, kind="algorithm_left", message="a2c is eliminated: is behind")
    mesh.known.events = [*mesh.known.events, left]
    out = type_("events", "latest", "--orchestrator", mesh.address).out
    assert out.index("2 cores are free") < out.index("a2c is eliminated: is behind")
    chosen = type_("events", "latest", "--orchestrator", mesh.address, "--kind", "algorithm_left", "--json").json
    assert [event["message"] for event in chosen] == ["a2c is eliminated: is behind"]


def test_filter_and_order_of_standings_and_events_are_passed_on(type_: Any, mesh: Any) -> None:
    for command, request in (("standings", pb.ListCandidatesRequest), ("events", ListEventsRequest)):
        wanted = ("--filter", "agent_id = *a2", "--order", "sequence desc")
        assert type_(command, "latest", "--orchestrator", mesh.address, *wanted).code == 0
        sent = mesh.known.asked(request)
        assert {(one.filter, one.order_by) for one in sent} == {("agent_id = *a2", "sequence desc")}


def test_an_unknown_kind_of_event_is_refused_with_the_existing_kinds(type_: Any, mesh: Any) -> None:
    answer = type_("events", "latest", "--orchestrator", mesh.address, "--kind", "algorithm_lost")
    assert answer.code != 0
    assert f"--kind algorithm_lost: cartpole-abc123 has only events of kind {mesh.known.events[0].kind}" in answer.err


def test_stop_cancels_and_waits_for_the_end(type_: Any, mesh: Any, canned: Any) -> None:
    mesh.known.tournaments = [canned.tournament("cartpole-abc123", "RUNNING")]
    mesh.known.ends_by_itself = False
    answer = type_("stop", "latest", "--orchestrator", mesh.address, "--json")
    assert answer.code == 0
    assert answer.json["state"] == "CANCELLED"
    assert answer.json["reason"] == "stopped by `podrace stop`"


def test_stop_leaves_an_ended_tournament_alone(type_: Any, mesh: Any) -> None:
    answer = type_("stop", "latest", "--orchestrator", mesh.address)
    assert "completed" in answer.out
    assert mesh.known.requests == []


def test_lineage_draws_children_below_their_parents(type_: Any, mesh: Any) -> None:
    lines = type_("lineage", "latest", "--orchestrator", mesh.address).out.splitlines()
    assert [line.lstrip("│├└─ ").split()[0] for line in lines] == ["cartpole-abc123", "a0", "a1", "a2"]
    assert lines[3].startswith("    └── a2")
    assert "champion" in lines[3]


def test_lineage_of_an_agent_shows_the_changes_of_each_ancestor(type_: Any, mesh: Any) -> None:
    parent = pb.Agent(agent_id="cartpole-abc123-a1", tournament_id="cartpole-abc123", origin=pb.ORIGIN_FRESH)
    parent.hyperparameters.update({"learning_rate": 0.001, "epochs": 4})
    child = pb.Agent(
        agent_id="cartpole-abc123-a2",
        tournament_id="cartpole-abc123",
        origin=pb.ORIGIN_MUTATION,
        parent_agent_ids=["cartpole-abc123-a1"],
        reason="best of three",
    )
    child.hyperparameters.update({"learning_rate": 0.002, "epochs": 4})
    mesh.known.lineage = [child, parent]
    out = type_("lineage", "latest-a2", "--orchestrator", mesh.address).out
    assert out.index("a1") < out.index("a2  mutation")
    assert "learning_rate 0.001 → 0.002" in out
    assert "epochs" not in out
    ancestors = type_("lineage", "latest-a2", "--orchestrator", mesh.address, "--json").json
    assert [agent["origin"] for agent in ancestors] == ["mutation", "fresh"]
    assert ancestors[0]["hyperparameters"] == {"epochs": 4, "learning_rate": 0.002}


def test_a_replay_fails_only_if_a_decision_differs(type_: Any, mesh: Any) -> None:
    agreed = type_("lineage", "latest", "--replay", "--orchestrator", mesh.address)
    assert agreed.code == 0
    assert "3 agents generated and 5 submissions judged again, 0 differences" in agreed.out
    mesh.known.differences = ["agent 2: parent a1 then, a0 now"]
    differing = type_("lineage", "latest", "--replay", "--orchestrator", mesh.address)
    assert differing.code == 1
    assert "parent a1 then, a0 now" in differing.out
    replayed = type_("lineage", "latest", "--replay", "--orchestrator", mesh.address, "--json")
    assert replayed.json == {"agents": 3, "submissions": 5, "differences": mesh.known.differences}


@pytest.mark.parametrize("command", ["show", "standings", "lineage", "stop", "evaluate"])
def test_an_unknown_tournament_is_refused_with_a_similar_one(type_: Any, mesh: Any, command: str) -> None:
    answer = type_(command, "cartpole-abc132", "--orchestrator", mesh.address)
    assert answer.code == 2
    assert (
        answer.err == f"error: {mesh.address}: unknown tournament 'cartpole-abc132'; did you mean 'cartpole-abc123'?\n"
    )


@pytest.mark.parametrize("command", ["show", "standings", "lineage", "stop", "evaluate"])
def test_a_home_without_tournaments_is_reported_in_one_line(type_: Any, command: str) -> None:
    answer = type_(command, "latest", "--home", "nowhere")
    assert answer.code == 2
    assert answer.err.startswith("error: nowhere: there are no tournaments")
    assert answer.err.count("\n") == 1


def test_an_orchestrator_that_does_not_run_is_reported_in_one_line(
    type_: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "REMOTE_SECONDS", 0.2)
    answer = type_("ls", "--orchestrator", f"unix:{tmp_path}/missing.sock")
    assert answer.code == 1
    assert answer.err.startswith(f"error: --orchestrator unix:{tmp_path}/missing.sock: nothing serves")
    assert answer.err.count("\n") == 1


def test_a_leaderboard_that_does_not_answer_is_named(
    type_: Any, mesh: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaderboard, "DURABLE_SECONDS", 0.1)
    mesh.known.leaderboard_address = f"unix:{tmp_path}/missing.sock"
    answer = type_("standings", "latest", "--orchestrator", mesh.address)
    assert answer.code == 1
    assert answer.err.startswith(f"error: unix:{tmp_path}/missing.sock does not answer (waited up to 0.1 s)")


@pytest.mark.parametrize("orchestrator", [(), ("--orchestrator", "unix:/nowhere")])
def test_a_home_that_cannot_be_written_is_reported_in_one_line(
    type_: Any, tmp_path: Any, orchestrator: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "cartpole.toml").write_text(
        '[environment]\nid = "CartPole-v1"\n[algorithms.ppo]\n[objective]\ntarget_return = 475\n'
    )
    answer = type_("train", "cartpole.toml", "--home", "file/home", *orchestrator)
    assert answer.code == 1
    assert answer.err == (
        f"error: {tmp_path}/file/home cannot be created: Not a directory; choose another folder with --home or"
        " PODRACE_HOME\n"
    )


def test_a_filter_does_not_change_which_kinds_of_events_exist(
    type_: Any, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (event,) = mesh.known.events

    async def list_events(self: Client, tournament_id: str, filter: str = "", order_by: str = "") -> list[Any]:
        return [] if filter else [event]

    monkeypatch.setattr(Client, "list_events", list_events)
    filtered = ("events", "latest", "--orchestrator", mesh.address, "--filter", "pod_id = x")
    empty = "cartpole-abc123 has no event that matches 'pod_id = x'\n"
    assert type_(*filtered).out == empty
    assert type_(*filtered, "--kind", event.kind).out == empty
    answer = type_(*filtered, "--kind", "other")
    assert (answer.code, f"has only events of kind {event.kind}" in answer.err) == (2, True)
