import ast
from collections.abc import Iterator
from pathlib import Path

from orchestrator.assignments.transactions import OUTCOMES
from orchestrator.state.records import WorkPhase
from podrace.discovery.event_kinds import EVENT_KINDS

REPOSITORY = Path(__file__).parents[4]


def texts(path: Path) -> Iterator[str]:
    """All texts in the source of a module."""
    tree = ast.parse(path.read_text())
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def kinds_of_phases() -> set[str]:
    """The kinds that are made of a word: how the assignment of an agent, or an evaluation, ended."""
    agents = {f"agent_{phase if phase != WorkPhase.UNFINISHED else word}" for phase, word in OUTCOMES.values()}
    return agents | {f"evaluation_{phase}" for phase in (WorkPhase.FINISHED, WorkPhase.FAILED)}


def test_every_listed_kind_is_recorded_somewhere() -> None:
    found = {text for path in (REPOSITORY / "orchestrator").rglob("*.py") for text in texts(path)}
    assert set(EVENT_KINDS) <= found | kinds_of_phases()


def test_every_kind_that_is_recorded_by_name_is_listed() -> None:
    recorded = set()
    for path in (REPOSITORY / "orchestrator").rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name == "record_event":
                recorded |= {
                    node.value
                    for argument in call.args
                    for node in ast.walk(argument)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "_" in node.value
                    if node.value.isidentifier()
                }
    assert len(recorded) > 15
    # Kinds that end in the word of a phase are checked as a whole.
    recorded -= {"agent_", "evaluation_"}
    assert recorded | kinds_of_phases() <= set(EVENT_KINDS)
