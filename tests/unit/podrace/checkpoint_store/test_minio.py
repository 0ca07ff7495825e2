"""Tests the store `minio` on a scripted S3 server. Tests on a real server are in tests/contract."""

import io
import socket
import subprocess
import sys
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import minio
import pytest
from scripted_s3 import AGENT, BUCKET, KEYS, POINTER_PATH, Fault, ScriptedS3, Time, opened, path_of, running

from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.checkpoint_store import minio_client, minio_private
from podrace.checkpoint_store.manifest import canonical_json
from podrace.checkpoint_store.minio import MinioStore
from podrace.checkpoint_store.minio_retries import RetryPolicy
from podrace.checkpoint_store.store import check_store
from podrace.digests import digest
from podrace.errors import (
    Aborted,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    PodraceError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)

# Failures that may pass, and others.


@pytest.mark.long
@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
@pytest.mark.parametrize(
    ("status", "code"), [(500, "InternalError"), (502, ""), (503, "SlowDown"), (504, ""), (429, ""), (408, ""), (0, "")]
)
def test_a_failure_that_may_pass_is_retried(
    script: ScriptedS3, store: MinioStore, method: str, status: int, code: str
) -> None:
    name = store.put_object(b"x")
    script.faults = [Fault(method, status, code)] * 2
    verb = {"PUT": store.put_object, "GET": store.get_object, "HEAD": lambda _: store.delete_object(name, 0.0)}[method]
    verb(b"x" if method == "PUT" else name)  # type: ignore[operator]
    assert script.faults == []


def test_pauses_double_up_to_the_longest_and_end_at_the_deadline(
    script: ScriptedS3, store: MinioStore, time_: Time
) -> None:
    script.faults = [Fault("GET", 503, "SlowDown")] * 100
    with pytest.raises(Unavailable, match=r"object .* HTTP 503 SlowDown: reason SlowDown \(17 tries in 60 s\)"):
        store.get_object(digest(b"x"))
    assert time_.pauses[:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert sum(time_.pauses) < 60.0
    assert len(script.requests) == len(time_.pauses) + 1 == 17


def test_pauses_are_drawn_between_half_and_all_of_the_limit() -> None:
    drawn: list[tuple[float, float]] = []
    RetryPolicy(60.0, uniform=lambda low, high: drawn.append((low, high)) or 0.0).pause_seconds(3)
    assert drawn == [pytest.approx((0.2, 0.4))]


@pytest.mark.parametrize(
    ("status", "code", "error", "line"),
    [
        (403, "AccessDenied", PermissionDenied, "check the credentials in PODRACE_STORE_ACCESS_KEY"),
        (403, "SignatureDoesNotMatch", PermissionDenied, "check the credentials in PODRACE_STORE_ACCESS_KEY"),
        (403, "InvalidAccessKeyId", PermissionDenied, "check the credentials in PODRACE_STORE_ACCESS_KEY"),
        (
            404,
            "NoSuchBucket",
            FailedPrecondition,
            "there is no bucket 'checkpoints'; create it, for instance: aws s3 mb",
        ),
        (507, "XMinioStorageFull", ResourceExhausted, "full .*; make room"),
        (507, "", ResourceExhausted, "full .*; make room"),
        (409, "XMinioAdminBucketQuotaExceeded", ResourceExhausted, "full .*; make room"),
        (400, "AuthorizationHeaderMalformed", FailedPrecondition, "set PODRACE_STORE_REGION"),
        (400, "InvalidRequest", FailedPrecondition, "HTTP 400 InvalidRequest"),
        (501, "NotImplemented", Unimplemented, "the server does not implement the request"),
        (404, "", FailedPrecondition, "does not answer like an S3 server"),
        (400, "", FailedPrecondition, "does not answer like an S3 server"),
    ],
)
def test_a_failure_that_cannot_pass_is_reported_at_once_on_one_line(
    script: ScriptedS3, store: MinioStore, status: int, code: str, error: type[PodraceError], line: str
) -> None:
    script.faults = [Fault("PUT", status, code)]
    with pytest.raises(error, match=line) as refusal:
        store.put_object(b"x")
    assert "\n" not in refusal.value.message
    assert f"{script.endpoint}/{BUCKET}/p" in refusal.value.message
    assert script.methods() == "PUT"


def test_a_clock_difference_is_reported_in_seconds(script: ScriptedS3, store: MinioStore) -> None:
    for offset, direction in ((3600, "behind"), (-3600, "ahead of")):
        date = formatdate(minio_client.time.time() + offset, usegmt=True)
        script.faults = [Fault("GET", 403, "RequestTimeTooSkewed", date=date)]
        with pytest.raises(
            FailedPrecondition, match=rf"clock is (3599|3600|3601) s {direction} the server's; set the clock"
        ):
            store.get_object(digest(b"x"))
        assert store.skew_seconds == pytest.approx(offset, abs=2)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AccessDenied"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (400, "ExpiredToken"),
        (403, "RequestTimeTooSkewed"),
        (404, "NoSuchBucket"),
        # A proxy whose server restarts, or a server that is starting, answers without an S3 error.
        (404, ""),
        (400, ""),
    ],
)
def test_what_a_store_did_not_refuse_before_is_a_fault_that_may_pass(
    script: ScriptedS3, store: MinioStore, status: int, code: str
) -> None:
    store.mark_usable()
    script.faults = [Fault("PUT", status, code)]
    with pytest.raises(Unavailable, match=r"check the credentials|set the clock|there is no bucket|like an S3 server"):
        store.within("race-aaaaaa").put_object(b"x")
    assert script.methods() == "PUT", "it is not repeated here: the caller waits longer"


def test_a_request_that_the_server_does_not_know_never_passes(script: ScriptedS3, store: MinioStore) -> None:
    store.mark_usable()
    script.faults = [Fault("PUT", 400, "InvalidRequest")]
    with pytest.raises(FailedPrecondition):
        store.put_object(b"x")


def test_the_age_of_an_object_is_measured_by_the_servers_clock(script: ScriptedS3, store: MinioStore) -> None:
    store.put_object(b"x")  # the listing says it was put at 2026-01-02T03:04:05.678Z
    script.date = "Fri, 02 Jan 2026 04:04:05 GMT"
    (stored,) = store.list_objects()
    assert stored.age_seconds == pytest.approx(3600, abs=2)


# Broken connections.


@pytest.fixture(params=["at once", "piece by piece"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads objects as small ones are read, and as large ones are read."""
    monkeypatch.setattr(minio_client, "OVERLAPPED_BYTES", 0 if request.param == "piece by piece" else 2**60)


@pytest.mark.usefixtures("reading")
def test_a_truncated_object_is_read_again(script: ScriptedS3, store: MinioStore) -> None:
    name = store.put_object(bytes(100_000))
    script.faults = [Fault("GET", sent_bytes=70_000)]
    assert store.get_object(name) == bytes(100_000)


@pytest.mark.usefixtures("reading")
def test_an_object_that_is_truncated_at_every_attempt_is_data_loss(script: ScriptedS3, store: MinioStore) -> None:
    name = store.put_object(bytes(100_000))
    script.faults = [Fault("GET", sent_bytes=70_000)] * 100
    with pytest.raises(DataLoss, match=rf"object {name} .* truncated: .* after 70000 of 100000 bytes"):
        store.get_object(name)


def test_an_unreachable_server_is_named(retries: RetryPolicy) -> None:
    with running(ScriptedS3()) as gone:
        uri = gone.uri
    line = f"{gone.endpoint} cannot be reached: Connection refused; check host and port"
    with pytest.raises(Unavailable, match=rf"{line} \(17 tries in 60 s\)$"):
        opened(uri, retries).put_object(b"x")
    with pytest.raises(Unavailable, match=f"{line}$"):
        opened(uri, replace(retries, deadline_seconds=0.0)).put_object(b"x")


@pytest.mark.parametrize("live", [0, 1, 2])
def test_a_store_is_reached_while_two_of_its_three_addresses_refuse_connections(
    monkeypatch: pytest.MonkeyPatch, retries: RetryPolicy, live: int
) -> None:
    with running(ScriptedS3()) as script:
        port = int(script.endpoint.rpartition(":")[2])
        hosts = ["127.0.0.2", "127.0.0.3"]
        hosts.insert(live, "127.0.0.1")
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        store = opened(f"minio+http://store.example:{port}/{BUCKET}/p", retries)
        assert store.get_object(store.put_object(b"x")) == b"x"
        assert script.methods() == "PUT GET"


def test_an_unknown_host_is_named(retries: RetryPolicy) -> None:
    store = opened("minio+http://no-such-host.invalid/bucket", replace(retries, deadline_seconds=0.05))
    with pytest.raises(Unavailable, match=r"no such host 'no-such-host\.invalid'; check the URI"):
        store.put_object(b"x")


# Conditions.


def test_a_server_that_ignores_a_condition_is_refused(retries: RetryPolicy) -> None:
    for condition in ("If-Match", "If-None-Match"):
        with (
            running(ScriptedS3(ignored=frozenset({condition}))) as careless,
            pytest.raises(FailedPrecondition, match="ignores conditions on writes"),
        ):
            check_store(opened(careless.uri, retries))
    with running(ScriptedS3()) as sound:
        check_store(opened(sound.uri, retries))


def test_the_packages_public_method_ignores_conditions_and_put_if_does_not(script: ScriptedS3) -> None:
    client = minio.Minio(script.endpoint, "key", "secret", secure=False, region="us-east-1")
    for content in (b"first", b"second"):
        client.put_object(BUCKET, "k", io.BytesIO(content), len(content), metadata={"If-None-Match": "*"})
    assert script.objects[f"/{BUCKET}/k"] == b"second"
    bucket = opened(script.uri, RetryPolicy(60.0))._bucket
    with pytest.raises(Aborted):
        bucket.put_if("k", b"third", None, "object")
    assert script.objects[f"/{BUCKET}/k"] == b"second"


@pytest.mark.parametrize("method", minio_private.PRIVATE_METHODS)
def test_a_package_without_a_private_method_is_refused(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.delattr(minio.Minio, method)
    with pytest.raises(Unimplemented, match=rf"minio {minio.__version__} has no {method}; install 'minio>=7.2.20,<8'"):
        opened("minio://store/bucket", RetryPolicy(60.0))


@pytest.mark.long
@pytest.mark.parametrize("status", [0, 500, 503])
@pytest.mark.parametrize("etag", [None, "present"])
def test_a_swap_whose_reply_was_lost_is_success(
    script: ScriptedS3, store: MinioStore, status: int, etag: str | None
) -> None:
    if etag:
        store.swap_pointer(AGENT, Pointer(agent_id=AGENT), None)
        _, etag = store.read_pointer(AGENT) or pytest.fail("no pointer")
    script.faults = [Fault("PUT", status, "InternalError", carried_out=True)]
    pointer = Pointer(agent_id=AGENT, lease_epoch=1)
    store.swap_pointer(AGENT, pointer, etag)
    assert (store.read_pointer(AGENT) or [None])[0] == pointer


def test_a_swap_that_failed_succeeds_at_the_next_attempt(script: ScriptedS3, store: MinioStore) -> None:
    script.faults = [Fault("PUT"), Fault("PUT", 503, "SlowDown")]
    store.swap_pointer(AGENT, Pointer(agent_id=AGENT, lease_epoch=1), None)
    assert script.objects[POINTER_PATH] == canonical_json(Pointer(agent_id=AGENT, lease_epoch=1))


def test_a_lost_reply_does_not_hide_that_another_process_was_first(script: ScriptedS3, store: MinioStore) -> None:
    theirs = canonical_json(Pointer(agent_id=AGENT, lease_epoch=9))
    script.objects[POINTER_PATH] = theirs
    script.faults = [Fault("PUT")]
    with pytest.raises(Aborted, match=f"pointer of agent {AGENT}"):
        store.swap_pointer(AGENT, Pointer(agent_id=AGENT, lease_epoch=1), None)
    assert script.objects[POINTER_PATH] == theirs


def test_equal_content_of_another_process_is_not_a_success(script: ScriptedS3, store: MinioStore) -> None:
    pointer = Pointer(agent_id=AGENT, lease_epoch=1)
    script.objects[POINTER_PATH] = canonical_json(pointer)
    with pytest.raises(Aborted):
        store.swap_pointer(AGENT, pointer, None)


@pytest.mark.parametrize(
    ("status", "code"), [(412, ""), (409, "ConditionalRequestConflict"), (409, "OperationAborted"), (404, "NoSuchKey")]
)
def test_every_status_of_a_lost_race_is_aborted(script: ScriptedS3, store: MinioStore, status: int, code: str) -> None:
    script.faults = [Fault("PUT", status, code)]
    with pytest.raises(Aborted, match="read it again"):
        store.swap_pointer(AGENT, Pointer(agent_id=AGENT), "tag")
    assert script.methods() == "PUT"


# Deleting.


def test_a_deletion_is_never_repeated(script: ScriptedS3, store: MinioStore) -> None:
    name = store.put_object(b"x")
    script.faults = [Fault("DELETE", carried_out=True)]
    with pytest.raises(Unavailable):
        store.delete_object(name, -10.0)
    assert script.methods() == "PUT HEAD DELETE"


# Lists.


def test_a_long_list_is_read_in_pages_and_continues_after_a_failure(script: ScriptedS3, store: MinioStore) -> None:
    names = {digest(b"%d" % index) for index in range(2500)}
    script.objects = {f"/{BUCKET}/p/objects/{name[:2]}/{name}": b"x" for name in names}
    script.objects |= {f"/{BUCKET}/p/objects/zz/{name}": b"" for name in ("note.txt", "b" * 64)}
    script.objects |= {f"/{BUCKET}/other/objects/aa/{'a' * 64}": b""}
    script.faults = [Fault("GET", 503, "SlowDown", marker="start-after")]
    assert {stored.digest for stored in store.list_objects()} == names
    assert len(script.requests) <= 6  # three pages, one of them twice, and the empty page at the end


# TLS.


def test_a_certificate_of_an_unknown_authority_is_refused_and_of_a_known_one_accepted(
    script: ScriptedS3, tmp_path: Path, retries: RetryPolicy
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    try:
        subprocess.run([*request, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    with running(ScriptedS3(), tls=(certificate, key)) as server:
        port = server.endpoint.rpartition(":")[2]
        uri = f"minio://localhost:{port}/{BUCKET}/p"
        with pytest.raises(FailedPrecondition, match=r"TLS with localhost:\d+ failed: .*PODRACE_STORE_CA_FILE"):
            opened(uri, retries).put_object(b"x")
        trusting = opened(uri, retries, KEYS | {"PODRACE_STORE_CA_FILE": str(certificate)})
        assert trusting.get_object(trusting.put_object(b"x")) == b"x"
        assert trusting.uri == uri
        assert server.checksums == {path_of(b"x"): (digest(b"x"),) * 2}  # signed over TLS as well


def test_tls_with_a_server_without_it_fails_and_names_the_other_scheme(
    script: ScriptedS3, retries: RetryPolicy
) -> None:
    uri = script.uri.replace("minio+http", "minio")
    with pytest.raises(FailedPrecondition, match=r"TLS with .* failed: .*use minio\+http:// for a server without TLS"):
        opened(uri, retries).put_object(b"x")


def test_a_malformed_region_is_refused(script: ScriptedS3, retries: RetryPolicy) -> None:
    with pytest.raises(InvalidArgument, match="region"):
        opened(script.uri, retries, KEYS | {"PODRACE_STORE_REGION": "mars phobos"})


# Packages.


def test_a_missing_package_is_reported_with_the_command_that_installs_it() -> None:
    program = (
        "import sys; sys.modules['minio'] = None\n"
        "from podrace.checkpoint_store import open_store\n"
        "from podrace.errors import Unimplemented\n"
        "try: open_store('minio://store/bucket')\n"
        "except Unimplemented as error: print(error.message)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip().endswith("needs the package minio: pip install 'minio>=7.2.20,<8' (podrace[minio])")


def test_opening_a_folder_imports_no_s3_package(tmp_path: Path) -> None:
    program = (
        "import sys; from podrace.checkpoint_store import open_store; open_store(sys.argv[1])\n"
        "print({'minio', 'urllib3'} & set(sys.modules))"
    )
    ran = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(ran, capture_output=True, text=True, check=True).stdout.strip() == "set()"
