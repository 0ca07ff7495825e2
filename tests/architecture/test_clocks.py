"""Wall clocks jump and differ between machines, so every place that reads one is listed here with what it is for."""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("agentpod", "leaderboard", "orchestrator", "podrace", "simulators")
READS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("time", "gmtime"),
    ("time", "ctime"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}
CREDENTIALS = (
    "a credential expires by the wall clock of the service that checks it; it lasts an hour or more, and is renewed"
)
SHOWN = "a time that people see, or that is recorded for them"
ONE_MACHINE = "compared with times of the same machine, by a command of a person"
ALLOWED = {
    "agentpod/learner/publisher.py": SHOWN,
    "agentpod/learner/sharing/reader.py": SHOWN,
    "agentpod/liveness/stacks.py": "the age of a file on this machine",
    "agentpod/process/forkserver.py": SHOWN,
    "leaderboard/__main__.py": "the clock of the database: times of records, see RECORDED",
    "leaderboard/checkpoints/archiving.py": SHOWN,
    "orchestrator/discovery.py": SHOWN,
    "orchestrator/launchers/kubernetes/event_recorder.py": SHOWN,
    "orchestrator/launchers/process/launcher.py": "the age of a folder on the machine of the orchestrator",
    "orchestrator/state/clock.py": "Clock.wall; its callers are in WALL",
    "podrace/access/address_tokens.py": CREDENTIALS,
    "podrace/access/audit.py": SHOWN,
    "podrace/access/authenticators/certificate.py": CREDENTIALS,
    "podrace/access/authenticators/oidc.py": CREDENTIALS,
    "podrace/access/authenticators/token_review.py": CREDENTIALS,
    "podrace/access/guard.py": CREDENTIALS,
    "podrace/access/lease_tokens.py": CREDENTIALS,
    "podrace/access/mesh_key.py": CREDENTIALS,
    "podrace/access/tokens.py": CREDENTIALS,
    "podrace/backup/database.py": "the hour of a backup and when it is due; the newest is found by its pointer",
    "podrace/checkpoint_store/minio_client.py": "the clock of the server, which is this one and the difference",
    "podrace/checkpoint_store/minio_connection.py": "the difference between the clock of the server and this one",
    "podrace/checkpoint_store/minio_errors.py": SHOWN,
    "podrace/cli/commands/backup.py": SHOWN,
    "podrace/cli/commands/certs.py": CREDENTIALS,
    "podrace/cli/commands/store.py": SHOWN,
    "podrace/cli/commands/token.py": CREDENTIALS,
    "podrace/cli/continuous/controller.py": ONE_MACHINE,
    "podrace/cli/continuous/process.py": ONE_MACHINE,
    "podrace/cli/continuous/tables.py": SHOWN,
    "podrace/cli/doctor/survey.py": "the difference between clocks, which the command reports",
    "podrace/cli/pruning/command.py": ONE_MACHINE,
    "podrace/cli/tensorboard/command.py": SHOWN,
    "podrace/cli/tensorboard/event_files.py": SHOWN,
    "podrace/cli/terminal/formats.py": SHOWN,
    "podrace/dashboard/entrance/sign_in.py": CREDENTIALS,
    "podrace/telemetry.py": "a warning about certificates, which expire by the wall clock",
}
WALL = {
    "orchestrator/__main__.py": "the clock of the database, see RECORDED",
    "orchestrator/state/database.py": "the clock of the database, see RECORDED",
    "orchestrator/pool/log_folder.py": "logs are kept for days",
    "orchestrator/state/pod_views.py": "the start of a pod, for which pods count as young; never later than now",
    "orchestrator/tournaments/deletion.py": "ended tournaments are kept for days",
}
RECORDED = {
    "leaderboard/generation.py": SHOWN,
    "leaderboard/queries.py": "memories of the last hour are listed; both times are of this clock",
    "leaderboard/store/records.py": SHOWN,
    "leaderboard/store/refusal_records.py": SHOWN,
    "leaderboard/store/snapshot_records.py": SHOWN,
    "leaderboard/updater.py": SHOWN,
    "orchestrator/assignments/external_pods.py": SHOWN,
    "orchestrator/pool/pod_lifecycle.py": SHOWN,
    "orchestrator/pool/resizes.py": "a resize that takes minutes is given up, and nothing is lost",
    "orchestrator/rebuilding/rebuild.py": SHOWN,
    "orchestrator/state/transitions.py": SHOWN,
    "orchestrator/tournaments/completion.py": SHOWN,
    "orchestrator/tournaments/lifecycle.py": SHOWN,
}
"""Modules that use `Transaction.now`, the wall clock at a change of the database."""


@functools.cache
def reads() -> Mapping[str, frozenset[tuple[str, str]]]:
    """Returns what each module reads: the last name of an object, and its attribute."""
    return {
        str(path.relative_to(REPOSITORY)): frozenset(reads_of(ast.parse(path.read_text())))
        for package in PACKAGES
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    }


def reads_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields attributes and their objects: `datetime.datetime.now` is (datetime, now)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            yield owner.lstrip("_"), node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (("time", alias.name) for alias in node.names)


def readers(*clocks: tuple[str, str]) -> set[str]:
    """Returns the modules that read one of some clocks."""
    return {name for name, found in reads().items() if found & {*clocks}}


def test_only_listed_modules_read_the_wall_clock() -> None:
    found = readers(*READS)
    assert found - ALLOWED.keys() == set(), "use a monotonic clock, or list the module with what it reads the clock for"
    assert ALLOWED.keys() - found == set(), "these modules no longer read the wall clock"


def test_only_listed_modules_use_the_wall_clock_that_is_passed_in() -> None:
    assert readers(("clock", "wall")) == WALL.keys()


def test_only_listed_modules_use_the_wall_clock_of_a_transaction() -> None:
    assert readers(("transaction", "now")) == RECORDED.keys()


def test_the_scan_finds_every_way_to_read_the_clock() -> None:
    text = "import time, datetime\nfrom time import time_ns\ndatetime.datetime.now()\nf = time.time\nself._clock.wall()"
    found = {*reads_of(ast.parse(text))}
    assert {("datetime", "now"), ("time", "time"), ("time", "time_ns"), ("clock", "wall")} <= found
