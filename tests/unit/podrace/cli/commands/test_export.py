from typing import Any

import pytest

from podrace.cli.commands import export


@pytest.mark.parametrize("subject", ["cartpole-abc123-a2", "candidate"])
def test_the_best_of_several_agents_are_those_of_a_tournament(
    type_: Any, mesh: Any, known: Any, monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    monkeypatch.setattr(export, "check_installed", lambda feature: None)
    named = known.submissions[2].candidate_id if subject == "candidate" else subject
    answer = type_("export", named, "--top", "3", "--orchestrator", mesh.address)
    assert answer.code == 2
    assert f"--top: {named} is one candidate; name its tournament" in answer.err
