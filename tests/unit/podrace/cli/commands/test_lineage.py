import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from podrace.cli.views import family, family_svg
from podrace.cli.views.family import FamilyMember, Position
from podrace.leaderboard.v1 import leaderboard_pb2 as pb

NAME = "cartpole-abc123"
SVG = "{http://www.w3.org/2000/svg}"


def agent(number: int, parent: int | None = None, algorithm: str = "ppo", **hyperparameters: Any) -> pb.Agent:
    entry = pb.Agent(
        agent_id=f"{NAME}-a{number}",
        tournament_id=NAME,
        number=number,
        algorithm=algorithm,
        origin=pb.ORIGIN_FRESH if parent is None else pb.ORIGIN_MUTATION,
        parent_agent_ids=[] if parent is None else [f"{NAME}-a{parent}"],
    )
    entry.hyperparameters.update(hyperparameters)
    return entry


@pytest.fixture(autouse=True)
def population(known: Any) -> None:
    """a0 and a1 are fresh, the champion a2 descends from a1, and a3 from a2; a3 has no score yet."""
    known.lineage = [
        agent(0, epochs=4, learning_rate=0.001),
        agent(1, epochs=4, learning_rate=0.001),
        agent(2, 1, epochs=4, learning_rate=0.002),
        agent(3, 2, epochs=8, learning_rate=0.002),
    ]
    known.submissions[2].core_seconds = 12.25
    known.lineage[2].starting_checkpoint.manifest_digest = known.submissions[1].candidate_id


def test_the_lineage_shows_every_agent_with_score_compute_and_changes(type_: Any, mesh: Any) -> None:
    lines = type_("lineage", "latest", "--orchestrator", mesh.address).out.splitlines()
    assert lines[:5] == [
        NAME,
        "├── a0  ppo  120.0 ± 2.5  100k steps  0.0 core-seconds",
        "└── a1  ppo  300.0 ± 2.5  200k steps  0.0 core-seconds",
        "    └── a2  ppo  480.0 ± 2.5  300k steps  12.2 core-seconds  champion  learning_rate 0.001 → 0.002",
        "        └── a3  ppo  no score  epochs 4 → 8",
    ]


def test_the_champions_hyperparameter_schedule_is_shown_below(type_: Any, mesh: Any) -> None:
    lines = type_("lineage", "latest", "--orchestrator", mesh.address).out.splitlines()
    assert lines[6] == "hyperparameters along the line to a2"
    assert " ".join(lines[7].split()) == "learning_rate 0.001 (from 0) → 0.002 (from 200k)"
    assert len(lines) == 8


@pytest.mark.parametrize("name", ["a2", "2", f"{NAME}-a2"])
def test_the_lineage_of_an_agent_shows_only_its_ancestors_and_descendants(type_: Any, mesh: Any, name: str) -> None:
    lines = type_("lineage", "latest", "--agent", name, "--orchestrator", mesh.address).out.splitlines()
    assert [line.lstrip("│├└─ ").split()[0] for line in lines[:4]] == [NAME, "a1", "a2", "a3"]
    assert lines[4:6] == ["", "hyperparameters along the line to a2"]


def test_json_lists_the_best_submission_of_each_agent_in_order_of_arrival(type_: Any, mesh: Any) -> None:
    everyone = type_("lineage", "latest", "--orchestrator", mesh.address, "--json").json
    assert [row["agent_id"] for row in everyone] == [f"{NAME}-a{number}" for number in range(3)]
    assert list(everyone[0]) == [
        "rank", "agent_id", "candidate_id", "algorithm", "hyperparameters", "score", "standard_error", "estimate",
        "estimate_error", "evaluation_epoch", "episodes", "environment_steps", "parent_agent_ids", "evaluator_fault",
        "replay_steps", "replay_memory_steps", "episode_metrics", "depth",
    ]  # fmt: skip
    relatives = type_("lineage", "latest", "--agent", "a1", "--orchestrator", mesh.address, "--json").json
    assert relatives == everyone[1:]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["latest", "--agent", "a33"], f"{NAME}: unknown agent 'a33'; did you mean 'a3'?"),
        (["latest", "--agent", "b"], f"{NAME}: unknown agent 'b'; there are 4 agents, from a0 on"),
        (["latest-a2", "--agent", "a1"], "lineage: latest-a2 and --agent a1 both name an agent; give only one"),
        (["latest", "--replay", "--svg", "x.svg"], "lineage: --replay compares decisions and draws nothing"),
        (["latest", "--svg", "no/x.svg"], "--svg no/x.svg: there is no folder "),
        (["latest", "--svg", "-"], "--svg -: name a file, or /dev/stdout"),
    ],
)
def test_a_wrong_request_is_reported_in_one_line(type_: Any, mesh: Any, arguments: list[str], line: str) -> None:
    answer = type_("lineage", *arguments, "--orchestrator", mesh.address)
    assert answer.code in (1, 2)
    assert answer.err.startswith(f"error: {line}")
    assert answer.err.count("\n") == 1


def drawing(path: Path) -> Any:
    return ElementTree.parse(path).getroot()


def test_the_drawing_contains_every_agent_with_its_details(type_: Any, mesh: Any, tmp_path: Path) -> None:
    answer = type_("lineage", "latest", "--svg", "tree.svg", "--orchestrator", mesh.address, "--json")
    assert len(answer.json) == 3
    assert answer.err == "the family tree is in tree.svg\n"
    assert [path.name for path in tmp_path.glob("*svg*")] == ["tree.svg"]
    root = drawing(tmp_path / "tree.svg")
    details = [
        node.find(f"{SVG}title").text for node in root.findall(f"{SVG}circle") if node.find(f"{SVG}title") is not None
    ]
    assert [text.split()[0] for text in details] == ["a0", "a1", "a2", "a3"]
    assert (
        details[2] == "a2  ppo  mutation\n480.0 ± 2.5 after 300k steps\n12.2 core-seconds\nlearning_rate 0.001 → 0.002"
    )
    edges = root.findall(f"{SVG}path")
    # The champion's line is drawn last, on top of the others.
    assert [edge.get("stroke-width") for edge in edges] == ["1", "3"]
    text = (tmp_path / "tree.svg").read_text()
    assert "href" not in text
    assert "url(" not in text


def test_the_drawing_of_an_agent_contains_its_relatives(type_: Any, mesh: Any, tmp_path: Path) -> None:
    type_("lineage", "latest-a1", "--svg", "tree.svg", "--orchestrator", mesh.address)
    text = (tmp_path / "tree.svg").read_text()
    assert "3 agents in order of creation" in text
    assert "<title>a0 " not in text


def test_a_tournament_without_agents_is_not_drawn(type_: Any, mesh: Any, tmp_path: Path) -> None:
    mesh.known.lineage, mesh.known.submissions = [], []
    answer = type_("lineage", "latest", "--svg", "tree.svg", "--orchestrator", mesh.address)
    assert answer.code == 1
    assert answer.err == f"error: {NAME} has no agents yet: there is nothing to draw\n"
    assert not (tmp_path / "tree.svg").exists()


def member(
    number: int, score: float | None, parent: str = "", algorithm: str = "ppo", reason: str = ""
) -> FamilyMember:
    best = None if score is None else pb.Candidate(score=score, standard_error=1.0)
    return FamilyMember(f"a{number}", f"a{number}", algorithm, parent, best=best, reason=reason)


def drawn(*entries: FamilyMember, line: tuple[str, ...] = ()) -> Any:
    members = {entry.agent_id: entry for entry in entries}
    return ElementTree.fromstring(family_svg.draw(members, family.lay_out(members, line), line, title="t"))


def nodes(root: Any) -> list[Any]:
    return [node for node in root.findall(f"{SVG}circle") if node.find(f"{SVG}title") is not None]


def test_better_agents_are_larger_and_agents_without_a_score_are_hollow() -> None:
    low, high, middle, none = nodes(drawn(member(0, -50.0), member(1, 150.0), member(2, 50.0), member(3, None)))
    assert [float(node.get("r")) for node in (low, middle, high)] == [2.5, pytest.approx(4.75, abs=0.06), 7.0]
    assert none.get("fill") == "white"
    assert low.get("fill") == high.get("fill") != "white"


def test_each_algorithm_has_a_color_that_the_legend_names() -> None:
    root = drawn(member(0, 1.0, algorithm="sac"), member(1, 2.0, algorithm="ppo"), member(2, 3.0, algorithm="sac"))
    first, second, third = (node.get("fill") for node in nodes(root))
    assert first == third != second
    legend = [node.get("fill") for node in root.findall(f"{SVG}circle") if node.find(f"{SVG}title") is None]
    assert legend == [second, first]


def test_text_of_agents_is_escaped() -> None:
    (node,) = nodes(drawn(member(0, 1.0, reason='<b> & "c"')))
    assert node.find(f"{SVG}title").text.endswith('<b> & "c"')


def test_labels_do_not_overlap_and_the_champion_has_one() -> None:
    entries = [member(0, 1.0), *(member(number, float(number), f"a{number - 1}") for number in range(1, 300))]
    line = tuple(entry.agent_id for entry in entries[:151])
    root = drawn(*entries, line=line)
    labels = [text for text in root.findall(f"{SVG}text") if text.get("font-size") == "9"]
    assert [text.text for text in labels if text.get("font-weight") == "bold"] == ["a150 150.0"]
    spans = sorted((float(text.get("x")), len(text.text) * 5.4) for text in labels)
    assert len(spans) > 30
    assert all(
        left + width / 2 <= right - other / 2 + 0.2 for (left, width), (right, other) in itertools.pairwise(spans)
    )


def test_a_drawing_of_hundreds_of_agents_has_a_limited_size_and_no_overlaps() -> None:
    members = {
        f"a{number}": member(number, float(number % 7), f"a{number - 8}" if number > 7 else "") for number in range(600)
    }
    places = family.lay_out(members, [])
    root = ElementTree.fromstring(family_svg.draw(members, places, (), title="t"))
    assert float(root.get("width") or 0) < 6000
    assert float(root.get("height") or 0) < 400
    in_first_row = [node for node, place in zip(nodes(root), places.values(), strict=True) if place.row == 0]
    xs = [(float(node.get("cx")), float(node.get("r"))) for node in in_first_row]
    assert all(left + radius <= right - other + 0.2 for (left, radius), (right, other) in itertools.pairwise(xs))
    assert places["a0"] == Position(0, 0)


def test_an_ancestor_from_another_tournament_is_shown_above(type_: Any, mesh: Any, tmp_path: Path) -> None:
    before = pb.Agent(agent_id="older-def456-a7", tournament_id="older-def456", number=7, algorithm="ppo")
    before.hyperparameters.update({"epochs": 2, "learning_rate": 0.001})
    known = mesh.known.lineage
    known[0].parent_agent_ids.append(before.agent_id)
    known[0].origin = pb.ORIGIN_CLONE
    mesh.known.families[before.agent_id] = [before]
    mesh.known.families[known[0].agent_id] = [known[0], before]
    lines = type_("lineage", "latest", "--svg", "t.svg", "--orchestrator", mesh.address).out.splitlines()
    assert lines[1:3] == [
        "├── older-def456-a7  ppo  no score",
        "│   └── a0  ppo  120.0 ± 2.5  100k steps  0.0 core-seconds  epochs 2 → 4",
    ]
    drawn = ElementTree.parse(tmp_path / "t.svg").getroot()
    assert any("older-def456-a7" in (text.text or "") for text in drawn.iter(f"{SVG}title"))
    shown = type_("lineage", f"{NAME}-a0", "--orchestrator", mesh.address).out.splitlines()
    assert [line.split()[0] for line in shown[:1]] == ["older-def456-a7"]
    assert shown[1].startswith("└── a0  clone")
