import json

import pytest

from podrace.qualification.findings import Finding, Grade, exit_code, from_json, report_value, to_json


def finding(grade: Grade) -> Finding:
    return Finding("machine", "GPU 0", grade, "80 GiB", "10 GiB", "", "replace it")


@pytest.mark.parametrize(
    ("grades", "code"),
    [
        ([], 1),
        ([Grade.ABSENT], 1),
        ([Grade.ABSENT, Grade.PASS], 0),
        ([Grade.SLOW], 0),
        ([Grade.PASS, Grade.FAIL], 1),
        ([Grade.FAIL], 1),
    ],
)
def test_a_machine_is_qualified_if_something_passed_and_nothing_failed(grades: list[Grade], code: int) -> None:
    assert exit_code(map(finding, grades)) == code


@pytest.mark.parametrize("grade", [Grade.PASS, Grade.SLOW])
def test_nothing_passes_on_processors(grade: Grade) -> None:
    found = finding(grade).on_processors()
    assert (found.grade, found.measured, found.remedy) == (Grade.ABSENT, "on the CPU: 80 GiB", "needs a GPU")


@pytest.mark.parametrize("grade", [Grade.FAIL, Grade.ABSENT])
def test_a_failure_on_processors_remains_one(grade: Grade) -> None:
    assert finding(grade).on_processors() == finding(grade)


def test_json_is_read_back() -> None:
    assert from_json(to_json(finding(Grade.SLOW))) == finding(Grade.SLOW)


@pytest.mark.parametrize("line", ["", "Warp 1.19", "{}", '{"grade": "GOOD"}', '{"grade": "PASS", "x": 1}', "[]", "1"])
def test_other_lines_are_no_findings(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(line)


def test_the_report_is_a_json_value() -> None:
    report = json.loads(json.dumps(report_value([finding(Grade.PASS)], 12.34, "0.1")))
    assert (report["qualified"], report["seconds"]) == (True, 12.3)
    assert report["findings"][0]["grade"] == "PASS"
