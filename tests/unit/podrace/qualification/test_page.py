from podrace.qualification.findings import Finding, Grade
from podrace.qualification.page import lines_of, summary
from podrace.qualification.parts import PARTS


def test_a_finding_that_passed_is_reported_in_one_line_with_its_bound() -> None:
    found = Finding("primitives", "kernel launch, cuda:0", Grade.PASS, "5.1 us", "at most 15 us")
    assert list(lines_of(found)) == ["PASS    primitives   kernel launch, cuda:0           5.1 us (at most 15 us)"]


def test_another_finding_says_what_was_expected_and_what_to_do() -> None:
    found = Finding("rates", "warp:humanoid", Grade.SLOW, "80k", "100k", "331k", "close other processes")
    head, *rest = lines_of(found)
    assert head.startswith("SLOW    rates")
    assert [line.strip() for line in rest] == ["expected: 100k", "reference: 331k", "remedy: close other processes"]


def test_what_is_absent_is_reported_in_one_line_with_what_it_needs() -> None:
    found = Finding("rates", "cartpole, cpu", Grade.PASS, "2k steps/s", "at least 1k steps/s").on_processors()
    (line,) = lines_of(found)
    assert line.endswith("on the CPU: 2k steps/s (needs a GPU)")


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in "".join(lines_of(Finding("machine", "GPU", Grade.FAIL, "\x1b[31mred", remedy="\x1b")))


def test_the_summary_counts_and_says_why_a_machine_is_not_qualified() -> None:
    passed, failed, absent = (Finding("machine", "x", grade) for grade in (Grade.PASS, Grade.FAIL, Grade.ABSENT))
    assert summary([passed, absent], 61.4) == "qualified (1 PASS, 1 ABSENT) in 61 s"
    assert summary([passed, failed], 1.0) == "not qualified (1 PASS, 1 FAIL) in 1 s"
    assert summary([absent], 1.0) == "not qualified: nothing was shown on a GPU (1 ABSENT) in 1 s"


def test_names_of_parts_fit_their_column() -> None:
    assert max(map(len, PARTS)) <= 11
