import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podrace.qualification import supervision
from podrace.qualification.findings import Finding, Grade
from podrace.qualification.supervision import Request

PASSED = Finding("machine", "GPU 0", Grade.PASS, "GPU-1")
FAILED = Finding("machine", "driver", Grade.FAIL, "470", "CUDA 13.0", remedy="install a newer one")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    made: list[Request] = []

    async def run(request: Request, report: Callable[[Finding], None]) -> list[Finding]:
        made.append(request)
        found = [PASSED, *([FAILED] if "planes" in request.parts else [])]
        for finding in found:
            report(finding)
        return found

    monkeypatch.setattr(supervision, "run", run)
    return made


def test_a_qualified_machine_exits_with_0_and_the_last_line_says_it(type_: Any, requests: list[Request]) -> None:
    answer = type_("qualify", "--part", "machine", "--quick", "--gpus", "GPU-1")
    assert answer.code == 0
    assert answer.out.splitlines()[0].startswith("PASS    machine")
    assert answer.out.splitlines()[-1].startswith("qualified (1 PASS)")
    (request,) = requests
    assert (request.parts, request.quick) == (["machine"], True)
    assert request.settings == {"gpus": "GPU-1", "node": "0"}


def test_a_failure_exits_with_1_and_shows_the_mend(type_: Any, requests: list[Request]) -> None:
    answer = type_("qualify")
    assert answer.code == 1
    assert "remedy: install a newer one" in answer.out


def test_json_is_one_value_on_stdout_and_the_page_is_on_stderr(type_: Any, requests: list[Request]) -> None:
    answer = type_("qualify", "--json", "--part", "machine")
    report = answer.json
    assert report["qualified"] is True
    assert report["findings"][0]["name"] == "GPU 0"
    assert "PASS    machine" in answer.err


@pytest.mark.long
def test_the_report_of_a_real_machine_has_the_published_shape(type_: Any) -> None:
    report = type_("qualify", "--json", "--quick", "--part", "machine").json
    assert report["findings"]
    assert {finding["part"] for finding in report["findings"]} == {"machine"}


def test_the_report_is_written_to_a_file(type_: Any, requests: list[Request], tmp_path: Path) -> None:
    assert type_("qualify", "--file", str(tmp_path / "report.json")).code == 1
    assert json.loads((tmp_path / "report.json").read_text())["qualified"] is False


def test_an_unknown_part_is_a_wrong_request(type_: Any, requests: list[Request]) -> None:
    answer = type_("qualify", "--part", "speed")
    assert answer.code == 2
    assert "unknown part 'speed'" in answer.err
    assert not requests
