"""Alert rules: each fires on its fault and not on a healthy mesh, by Prometheus' own tool."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "compose/alerts.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
AT = "40m"
DAY = 24 * 60 * 60
"""Seconds of a day; the samples begin at the time 0."""

HEALTHY = {
    'up{job="services", component="orchestrator", instance="a"}': "1x60",
    'up{job="services", component="leaderboard", instance="b"}': "1x60",
    'up{job="serving", component="serving", instance="c"}': "1x60",
    'podrace_replica_leads{job="services", component="orchestrator", instance="a"}': "1x60",
    'podrace_replica_leads{job="services", component="leaderboard", instance="b"}': "1x60",
    'podrace_replica_leads{job="services", component="leaderboard", instance="replica of b"}': "0x60",
    'podrace_backup_failures_total{instance="a"}': "0x60",
    'podrace_backup_due_time_seconds{instance="a"}': "60+60x60",
    'podrace_backup_due_time_seconds{instance="without backups"}': "0x60",
    'podrace_tls_certificate_expiry_time_seconds{instance="a", certificate="own"}': f"{60 * DAY}x60",
    'podrace_tls_certificate_expiry_time_seconds{instance="unreadable", certificate="own"}': "NaNx60",
    'podrace_orchestrator_reconcile_seconds_bucket{instance="a", le="0.1"}': "0+60x60",
    'podrace_orchestrator_reconcile_seconds_bucket{instance="a", le="+Inf"}': "0+60x60",
    'podrace_leaderboard_submit_seconds_bucket{instance="a", le="0.1"}': "0+60x60",
    'podrace_leaderboard_submit_seconds_bucket{instance="a", le="+Inf"}': "0+60x60",
    "podrace_orchestrator_tournaments_paused": "0x60",
    "podrace_orchestrator_database_unwritable": "0x60",
    "podrace_leaderboard_checkpoints_missing": "0x60",
    "podrace_leaderboard_collections_failed_total": "0x60",
    'podrace_orchestrator_pods{tournament_id="t"}': "2x60",
    'podrace_orchestrator_pods_wanted{tournament_id="t"}': "2x60",
    'podrace_orchestrator_environment_steps{tournament_id="t"}': "0+1000x60",
    'podrace_orchestrator_failed_agents{tournament_id="t"}': "0x60",
    "podrace_orchestrator_leases_expired_total": "0x60",
    'podrace_learner_stuck_roles_total{tournament_id="t"}': "0x60",
    'podrace_learner_fusion_rounds_aborted_total{tournament_id="t"}': "0x35 1x25",
    'podrace_leaderboard_submissions_refused_total{reason="bad_checkpoint"}': "0x60",
    'podrace_orchestrator_gpu_withheld{gpu="GPU-1"}': "0x60",
    'podrace_orchestrator_gpu_uncorrected_errors{gpu="GPU-1"}': "3x60",
    'podrace_serving_source_errors_total{instance="a"}': "0x60",
    'podrace_serving_requests_total{instance="a", status="OK"}': "0+1000x60",
    'podrace_serving_requests_total{instance="a", status="INTERNAL"}': "0+1x60",
    'podrace_serving_requests_total{instance="a", status="RESOURCE_EXHAUSTED"}': "0+1x60",
}
"""Samples of a healthy mesh, one a minute, in the notation of promtool: first value, step, number."""

FAULTS = {
    "PodraceServiceDown": {'up{job="services", component="orchestrator", instance="a"}': "1x30 0x30"},
    "PodraceServiceMissing": {'up{job="services", component="orchestrator", instance="a"}': "1x30 stale"},
    "PodraceNoLeader": {'podrace_replica_leads{job="services", component="leaderboard", instance="b"}': "1x30 0x30"},
    "PodraceBackupFails": {'podrace_backup_failures_total{instance="a"}': "0x20 0+1x40"},
    "PodraceBackupOverdue": {'podrace_backup_due_time_seconds{instance="a"}': "60+60x10 660x50"},
    "PodraceCertificateExpires": {
        'podrace_tls_certificate_expiry_time_seconds{instance="a", certificate="own"}': f"{30 * DAY}x60"
    },
    "PodraceReconcileSlow": {'podrace_orchestrator_reconcile_seconds_bucket{instance="a", le="0.1"}': "0x60"}
    | {f'podrace_orchestrator_reconcile_seconds_bucket{{instance="a", le="{le}"}}': "0+60x60" for le in ("10", "+Inf")},
    "PodraceSubmitSlow": {'podrace_leaderboard_submit_seconds_bucket{instance="a", le="0.1"}': "0x60"}
    | {f'podrace_leaderboard_submit_seconds_bucket{{instance="a", le="{le}"}}': "0+60x60" for le in ("10", "+Inf")},
    "PodraceStorageFault": {"podrace_orchestrator_tournaments_paused": "0x30 1x30"},
    "PodraceCheckpointsMissing": {"podrace_leaderboard_checkpoints_missing": "0x30 2x30"},
    "PodraceCollectionFails": {"podrace_leaderboard_collections_failed_total": "0x20 0+1x40"},
    "PodracePoolShort": {'podrace_orchestrator_pods{tournament_id="t"}': "1x60"},
    "PodraceNoProgress": {'podrace_orchestrator_environment_steps{tournament_id="t"}': "0+1000x10 10000x50"},
    "PodraceAgentsFail": {'podrace_orchestrator_failed_agents{tournament_id="t"}': "0x20 0+1x40"},
    "PodraceLeasesExpire": {"podrace_orchestrator_leases_expired_total": "0x20 0+1x40"},
    "PodraceRolesStuck": {'podrace_learner_stuck_roles_total{tournament_id="t"}': "0x35 1x25"},
    "PodraceFusionFails": {'podrace_learner_fusion_rounds_aborted_total{tournament_id="t"}': "0x20 0+1x40"},
    "PodraceSubmissionsRefused": {
        'podrace_leaderboard_submissions_refused_total{reason="bad_checkpoint"}': "0x35 1x25",
    },
    "PodraceGpuWithheld": {'podrace_orchestrator_gpu_withheld{gpu="GPU-1"}': "1x60"},
    "PodraceGpuErrors": {'podrace_orchestrator_gpu_uncorrected_errors{gpu="GPU-1"}': "3x20 4x40"},
    "PodraceServingSourceFails": {'podrace_serving_source_errors_total{instance="a"}': "0+1x60"},
    "PodraceServingErrors": {'podrace_serving_requests_total{instance="a", status="INTERNAL"}': "0+50x60"},
    "PodraceServingOverloaded": {
        'podrace_serving_requests_total{instance="a", status="RESOURCE_EXHAUSTED"}': "0+50x60"
    },
}
"""By alert: the samples that replace or follow those of a healthy mesh."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)


def firing(samples: Mapping[str, str], folder: Path) -> set[str]:
    """Returns the alerts that fire after 40 minutes of these samples."""
    series = [{"series": name, "values": values} for name, values in samples.items()]
    # promtool prints what fires only where it expects something else.
    expected = {"exp_labels": {"never": "this"}}
    checks = [{"eval_time": AT, "alertname": name, "exp_alerts": [expected]} for name in ALERTS]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": checks}
    file = folder / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    answers = re.findall(
        r"alertname: (\w+), time: \w+,\s*exp:.*?got:(\[.*?\]\s*(?=alertname|$))", done.stderr, re.DOTALL
    )
    assert {name for name, _ in answers} == set(ALERTS), done.stderr
    return {name for name, got in answers if "Labels" in got}


@needs_promtool
def test_no_alert_fires_on_a_healthy_mesh(tmp_path: Path) -> None:
    assert firing(HEALTHY, tmp_path) == set()


@pytest.mark.long
@needs_promtool
@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_fires_on_its_fault_and_no_other_does(name: str, tmp_path: Path) -> None:
    assert firing({**HEALTHY, **FAULTS[name]}, tmp_path) == {name}


@pytest.mark.long
@needs_promtool
def test_a_tournament_that_gets_no_pod_is_reported_as_short(tmp_path: Path) -> None:
    none = {
        'podrace_orchestrator_pods{tournament_id="t"}': "0x60",
        'podrace_orchestrator_environment_steps{tournament_id="t"}': "0x60",
    }
    assert firing({**HEALTHY, **none}, tmp_path) == {"PodracePoolShort"}


@pytest.mark.long
@needs_promtool
def test_a_tournament_that_is_new_is_not_reported_as_standing_still(tmp_path: Path) -> None:
    new = {
        'podrace_orchestrator_pods{tournament_id="t"}': "_x28 2x30",
        'podrace_orchestrator_environment_steps{tournament_id="t"}': "_x28 0x30",
    }
    assert firing({**HEALTHY, **new}, tmp_path) == set()


@needs_promtool
def test_a_database_that_cannot_be_written_is_reported_although_no_tournament_runs(tmp_path: Path) -> None:
    unwritable = {"podrace_orchestrator_database_unwritable": "0x30 1x30"}
    assert firing({**HEALTHY, **unwritable}, tmp_path) == {"PodraceStorageFault"}


@pytest.mark.long
@needs_promtool
@pytest.mark.parametrize("operator", [False, True], ids=["compose", "operator"])
@pytest.mark.parametrize("component", ["orchestrator", "leaderboard", "serving"])
def test_a_service_without_any_target_is_missed(component: str, operator: bool, tmp_path: Path) -> None:
    samples = {
        re.sub('job="[a-z]+"', 'job="mesh/podrace-services"', name) if operator and name.startswith("up{") else name:
        "1x30 stale" if name.startswith("up{") and f'component="{component}"' in name else values
        for name, values in HEALTHY.items()
    }  # fmt: skip
    assert firing(samples, tmp_path) == {"PodraceServiceMissing"}


@needs_promtool
def test_a_service_that_never_had_a_target_is_missed_unless_it_is_optional(tmp_path: Path) -> None:
    def without(component: str) -> dict[str, str]:
        return {name: values for name, values in HEALTHY.items() if f'component="{component}"' not in name}

    assert firing(without("leaderboard"), tmp_path) == {"PodraceServiceMissing"}
    assert firing(without("serving"), tmp_path) == set()


@needs_promtool
def test_a_leader_that_is_gone_is_reported_unless_another_replica_takes_over(tmp_path: Path) -> None:
    leader, other = (
        f'podrace_replica_leads{{job="services", component="leaderboard", instance="{name}"}}'
        for name in ("b", "replica of b")
    )
    gone = {**HEALTHY, leader: "1x30 stale"}
    assert firing(gone, tmp_path) == {"PodraceNoLeader"}
    assert firing({**gone, other: "0x31 1x28"}, tmp_path) == set()


def test_every_fault_has_an_alert_and_every_alert_a_fault() -> None:
    assert FAULTS.keys() == ALERTS.keys()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_happened_and_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "action"}


def test_the_operator_of_prometheus_gets_the_same_alerts() -> None:
    made: dict[str, Any] = yaml.safe_load((DEPLOY / "k8s/components/metrics/alerts.yaml").read_text())
    assert made["kind"] == "PrometheusRule"
    assert made["spec"]["groups"] == GROUPS
