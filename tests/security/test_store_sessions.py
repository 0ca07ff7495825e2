"""What a pod could do with temporary credentials of the store (STS), on a real S3 server with an identity service.

A session policy keeps its holder inside a tournament, but lets it replace objects there. The server has no condition
that would prevent that. A leaderboard therefore signs a URL for each object instead of giving out sessions; see
test_presigned_urls and leaderboard/store_access/access.py.
"""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import weed
from minio import Minio
from minio.error import S3Error

OWN, OTHER = "ant-x1", "ant-y2"
READ, WRITE = "s3:GetObject", "s3:PutObject"


@pytest.fixture(scope="module")
def server() -> Iterator[weed.S3Server]:
    if weed.binary() is None:
        pytest.skip(weed.MISSING)
    with weed.running_server(sts=True) as running:
        yield running


class Holder:
    """A holder of credentials, and the keys of the objects that it tries to reach."""

    def __init__(self, client: Minio, prefix: str) -> None:
        self.client, self.prefix = client, prefix

    def key(self, tournament_id: str, name: str) -> str:
        return f"{self.prefix}/tournaments/{tournament_id}/objects/{name}"

    def get(self, tournament_id: str, name: str) -> bytes:
        with self.client.get_object(weed.BUCKET, self.key(tournament_id, name)) as response:
            return bytes(response.read())

    def put(self, tournament_id: str, name: str, data: bytes, **headers: str) -> None:
        sent = {header.replace("_", "-"): value for header, value in headers.items()}
        self.client._put_object(weed.BUCKET, self.key(tournament_id, name), data, sent)

    def delete(self, tournament_id: str, name: str) -> None:
        self.client.remove_object(weed.BUCKET, self.key(tournament_id, name))


@pytest.fixture
def operator(server: weed.S3Server) -> Holder:
    """The holder of the keys; there is an object in each of two tournaments."""
    made = Holder(server.client(), uuid.uuid4().hex[:12])
    for tournament_id in (OWN, OTHER):
        made.put(tournament_id, "stored", b"stored")
    return made


def session(server: weed.S3Server, operator: Holder, condition: Mapping[str, Any]) -> Holder:
    """A session of the own tournament; the condition is that of writes."""
    own = f"arn:aws:s3:::{weed.BUCKET}/{operator.key(OWN, '*')}"
    write = {"Effect": "Allow", "Action": [WRITE], "Resource": [own]} | ({"Condition": condition} if condition else {})
    credentials = server.session([{"Effect": "Allow", "Action": [READ], "Resource": [own]}, write])
    client = Minio(server.endpoint, secure=False, region="us-east-1", credentials=credentials)
    return Holder(client, operator.prefix)


def test_a_session_stays_inside_its_tournament_and_deletes_and_lists_nothing(
    server: weed.S3Server, operator: Holder
) -> None:
    pod = session(server, operator, {})
    pod.put(OWN, "new", b"new")
    assert pod.get(OWN, "new") == b"new"
    attempts = {
        "read of another tournament": lambda: pod.get(OTHER, "stored"),
        "write to another tournament": lambda: pod.put(OTHER, "new", b"new"),
        "way out of the folder": lambda: pod.put(OWN, f"../../{OTHER}/objects/new", b"new"),
        "pointer": lambda: pod.client._put_object(weed.BUCKET, f"{operator.prefix}/pointers/ant-x1-a0.json", b"{}", {}),
        "deletion": lambda: pod.delete(OWN, "stored"),
        "list": lambda: list(pod.client.list_objects(weed.BUCKET, prefix=pod.key(OWN, ""))),
    }
    allowed = []
    for what, attempt in attempts.items():
        try:
            attempt()
        except S3Error:
            continue
        allowed.append(what)
    assert allowed == []
    assert {tournament_id: operator.get(tournament_id, "stored") for tournament_id in (OWN, OTHER)} == {
        OWN: b"stored",
        OTHER: b"stored",
    }


def test_a_session_replaces_objects_unless_it_states_the_condition_itself(
    server: weed.S3Server, operator: Holder
) -> None:
    """The reason why pods get signed URLs and no sessions."""
    pod = session(server, operator, {})
    with pytest.raises(S3Error, match="PreconditionFailed"):
        pod.put(OWN, "stored", b"other bytes", if_none_match="*")
    assert operator.get(OWN, "stored") == b"stored"
    pod.put(OWN, "stored", b"other bytes")
    assert operator.get(OWN, "stored") == b"other bytes"


@pytest.mark.parametrize(
    "condition", [{"Null": {"s3:if-none-match": "false"}}, {"StringEquals": {"s3:if-none-match": "*"}}]
)
def test_a_policy_that_demands_the_condition_refuses_every_write(
    server: weed.S3Server, operator: Holder, condition: Mapping[str, Any]
) -> None:
    """Policies of Amazon have this key. If this test fails, the server has it too, and a session could be enough."""
    pod = session(server, operator, condition)
    assert pod.get(OWN, "stored") == b"stored"
    for headers in ({}, {"if_none_match": "*"}):
        with pytest.raises(S3Error, match="AccessDenied"):
            pod.put(OWN, "new", b"new", **headers)
