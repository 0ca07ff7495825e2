from orchestrator.decisions.storage_faults import Report, faults_of, faults_of_database

FULL = "the disk is full"


def test_a_tournament_without_faults_is_left_out() -> None:
    assert faults_of([Report("t", "t-p0", ""), Report("t", "t-p1", "")], {}) == {}


def test_a_tournament_is_paused_while_all_its_pods_wait() -> None:
    found = faults_of([Report("t", "t-p0", FULL), Report("t", "t-p1", FULL)], {})
    assert found["t"].pause_reason == "waiting for storage: the disk is full"
    assert str(found["t"]) == "2 of 2 pods wait for storage: the disk is full"


def test_a_tournament_in_which_one_pod_still_trains_is_not_paused() -> None:
    found = faults_of([Report("t", "t-p0", ""), Report("t", "t-p1", FULL)], {})
    assert found["t"].pause_reason == ""
    assert (found["t"].waiting, found["t"].training) == (1, 2)


def test_tournaments_do_not_pause_each_other() -> None:
    found = faults_of([Report("a", "a-p0", FULL), Report("b", "b-p0", "")], {})
    assert list(found) == ["a"]


def test_the_reason_does_not_depend_on_the_order_of_the_reports() -> None:
    reports = [Report("t", "t-p1", "slow"), Report("t", "t-p0", FULL)]
    assert faults_of(reports, {}) == faults_of(reports[::-1], {})


def test_a_tournament_whose_last_pods_wait_for_an_agent_is_paused() -> None:
    found = faults_of([], {"t": FULL})
    assert found["t"].pause_reason == "waiting for storage: the disk is full"
    assert str(found["t"]) == "no agent is generated: the disk is full"


def test_pods_that_still_train_keep_the_clock_running_while_no_agent_is_generated() -> None:
    assert faults_of([Report("t", "t-p0", "")], {"t": FULL}) == {}


def test_while_the_database_cannot_be_written_every_running_tournament_is_paused() -> None:
    found = faults_of_database(FULL, ["a", "b"])
    assert {name: fault.pause_reason for name, fault in found.items()} == dict.fromkeys(
        "ab", "waiting for storage: the disk is full"
    )
    assert str(found["a"]) == "nothing could be recorded: the disk is full"
