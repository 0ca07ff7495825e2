"""Filters, orders and labels of the lists of the orchestrator."""

from typing import Any

import pytest

from podrace.errors import Aborted, InvalidArgument
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


async def create(mesh: Any, spec: Any, **labels: str) -> Any:
    request = pb.CreateTournamentRequest(request_id=str(sorted(labels.items())), spec=spec(), labels=labels)
    return (await mesh.call("CreateTournament", request)).tournament


async def listed(mesh: Any, **request: Any) -> list[str]:
    """The ids of all pages of two entries."""
    names: list[str] = []
    token = ""
    while True:
        page = await mesh.call("ListTournaments", pb.ListTournamentsRequest(page_size=2, page_token=token, **request))
        names += [one.tournament_id for one in page.tournaments]
        token = page.next_page_token
        if not token:
            return names


async def update(mesh: Any, name: str, *paths: str, etag: str = "", **labels: str) -> Any:
    request = pb.UpdateTournamentRequest(
        request_id=f"{paths}{labels}{etag}", tournament_id=name, labels=labels, etag=etag
    )
    request.update_mask.paths.extend(paths)
    return (await mesh.call("UpdateTournament", request)).tournament


async def test_tournaments_are_selected_by_label_and_state_over_all_pages(mesh: Any, spec: Any) -> None:
    teams = ("vision", "rl") * 3
    made = [await create(mesh, spec, number=str(number), team=team) for number, team in enumerate(teams)]
    names = [one.tournament_id for one in made]
    assert dict(made[1].labels) == {"number": "1", "team": "rl"}
    assert await listed(mesh, filter="labels.team = rl") == [names[5], names[3], names[1]]
    cancel = pb.CancelTournamentRequest(request_id="c", tournament_id=names[3])
    await mesh.call("CancelTournament", cancel)
    assert await listed(mesh, filter="labels.team = rl AND state = RUNNING") == [names[5], names[1]]
    assert await listed(mesh, filter="state = TOURNAMENT_STATE_CANCELLED") == [names[3]]
    assert await listed(mesh, filter="NOT labels.team = rl") == [names[4], names[2], names[0]]
    assert await listed(mesh, filter=f"name = {spec().name} AND labels:number", order_by="tournament_id") == sorted(
        names
    )
    assert await listed(mesh, filter=f"tournament_id = {names[2]}") == [names[2]]
    assert await listed(mesh, order_by="end_time desc") == [names[3], *(names[i] for i in (5, 4, 2, 1, 0))]
    with pytest.raises(InvalidArgument, match=r"filter: unknown field 'lables\.team'"):
        await listed(mesh, filter="lables.team = rl")


async def test_a_page_token_is_refused_with_another_filter_or_order(mesh: Any, spec: Any) -> None:
    for number in range(3):
        await create(mesh, spec, number=str(number))
    request = pb.ListTournamentsRequest(page_size=1, filter="labels:number")
    token = (await mesh.call("ListTournaments", request)).next_page_token
    for other in ({}, {"filter": "labels:other"}, {"filter": "labels:number", "order_by": "create_time"}):
        with pytest.raises(InvalidArgument, match="does not belong to this list"):
            await mesh.call("ListTournaments", pb.ListTournamentsRequest(page_token=token, **other))


async def test_labels_are_changed_one_by_one_also_after_the_end_with_an_event(mesh: Any, spec: Any) -> None:
    made = await create(mesh, spec, team="rl", draft="yes")
    name = made.tournament_id
    await mesh.call("CancelTournament", pb.CancelTournamentRequest(request_id="c", tournament_id=name))
    changed = await update(mesh, name, "labels.team", "labels.draft", team="vision")
    assert dict(changed.labels) == {"team": "vision"}
    with pytest.raises(Aborted, match="was changed since it was read"):
        await update(mesh, name, etag=made.etag, team="other")
    assert (await update(mesh, name, etag=changed.etag, cost="1")).etag != changed.etag
    events = await mesh.call("ListEvents", pb.ListEventsRequest(tournament_id=name, filter="kind = tournament_updated"))
    assert [one.message for one in events.events] == [
        "labels.draft yes -> none, labels.team rl -> vision",
        "labels.cost none -> 1",
    ]
    assert await listed(mesh, filter="labels.team = vision AND labels.cost = 1") == [name]


async def test_labels_survive_a_restart(open_mesh: Any, spec: Any) -> None:
    async with open_mesh() as mesh:
        name = (await create(mesh, spec, team="rl")).tournament_id
        await mesh.call("CancelTournament", pb.CancelTournamentRequest(request_id="c", tournament_id=name))
    async with open_mesh() as mesh:
        assert dict((await mesh.get(name)).labels) == {"team": "rl"}
        assert await listed(mesh, filter="labels:team") == [name]


@pytest.mark.parametrize("labels", [{"a b": "c"}, {"a": "b c"}, {f"a{number}": "" for number in range(65)}])
async def test_labels_that_kubernetes_would_refuse_are_refused(mesh: Any, spec: Any, labels: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="labels"):
        await mesh.call("CreateTournament", pb.CreateTournamentRequest(request_id="r", spec=spec(), labels=labels))
    assert await listed(mesh) == []


async def test_events_and_pods_are_selected_and_ordered(mesh: Any, spec: Any) -> None:
    name = (await create(mesh, spec)).tournament_id
    await mesh.call("PauseTournament", pb.PauseTournamentRequest(request_id="p", tournament_id=name))

    async def events(**request: Any) -> list[str]:
        answer = await mesh.call("ListEvents", pb.ListEventsRequest(tournament_id=name, **request))
        return [one.kind for one in answer.events]

    every = await events()
    assert await events(filter="kind = tournament_*") == [kind for kind in every if kind.startswith("tournament_")]
    assert await events(order_by="sequence desc") == every[::-1]
    assert await events(filter="sequence > 1 AND kind = tournament_created") == []
    pods = await mesh.call("ListPods", pb.ListPodsRequest(filter="activity = TRAINING", order_by="start_time desc"))
    assert not pods.pods
    with pytest.raises(InvalidArgument, match="unknown value 'SLEEPING'"):
        await mesh.call("ListPods", pb.ListPodsRequest(filter="activity = SLEEPING"))


async def test_evaluations_are_selected_and_ordered_over_all_pages(mesh: Any, spec: Any) -> None:
    name = (await create(mesh, spec)).tournament_id
    every = [await mesh.evaluate(name) for _ in range(3)]

    async def evaluations(**selected: Any) -> list[str]:
        request = pb.ListEvaluationsRequest(tournament_id=name, page_size=1, **selected)
        found: list[str] = []
        while True:
            page = await mesh.call("ListEvaluations", request)
            found += [one.work.evaluation_id for one in page.evaluations]
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    assert await evaluations(filter="number > 0") == every[1:]
    assert await evaluations(order_by="number desc") == every[::-1]
    assert await evaluations(filter="done = true") == []
