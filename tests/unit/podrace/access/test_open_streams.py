import math

import pytest

from podrace.access.open_streams import OpenPublicStreams, OpenStreams, host_of
from podrace.access.principal import Principal, roles_with_included
from podrace.access.service_access import AccessConfig
from podrace.access.v1 import access_pb2
from podrace.config import build
from podrace.errors import InvalidArgument, ResourceExhausted


def person(name: str = "alice", role: int = access_pb2.ROLE_USER, namespace: str = "") -> Principal:
    return Principal(name, roles_with_included({role}), namespace, via="token")


def opened(streams: OpenStreams, principal: Principal, attempts: int) -> int:
    count = 0
    for _ in range(attempts):
        try:
            streams.open(principal)
        except ResourceExhausted:
            continue
        count += 1
    return count


def test_each_owner_has_streams_of_its_own() -> None:
    streams = OpenStreams(3, {})
    for each in (person("alice"), person("bob"), person("alice", namespace="vision")):
        assert opened(streams, each, 10) == 3


def test_a_stream_that_ends_leaves_room_for_another() -> None:
    streams = OpenStreams(1, {})
    for _ in range(3):
        end = streams.open(person())
        assert opened(streams, person(), 2) == 0
        end()
    assert not streams._open, "an owner without streams takes no memory"


def test_viewers_are_limited_and_operators_services_and_pods_are_not() -> None:
    streams = OpenStreams(2, {})
    assert opened(streams, person("eve", access_pb2.ROLE_VIEWER), 100) == 2
    for role in (access_pb2.ROLE_OPERATOR, access_pb2.ROLE_ORCHESTRATOR, access_pb2.ROLE_POD_LEADER):
        assert opened(streams, person("other", role), 100) == 100
    streams.open(person("other", access_pb2.ROLE_OPERATOR))()


def test_an_owner_can_have_another_limit_and_the_refusal_names_the_setting() -> None:
    streams = OpenStreams(1, {"vision/dashboard": 4.0, "free": 0.0})
    dashboard = person("dashboard", namespace="vision")
    assert opened(streams, person("free"), 100) == 100
    assert opened(streams, dashboard, 100) == 4
    with pytest.raises(ResourceExhausted, match="vision/dashboard has 4 streams open") as refused:
        streams.open(dashboard)
    assert refused.value.reason == "ERROR_REASON_QUOTA_EXCEEDED"
    assert refused.value.metadata == {
        "setting": "access.owner_open_streams.vision/dashboard",
        "limit": "4",
        "owner": "vision/dashboard",
    }
    with pytest.raises(ResourceExhausted) as refused:
        [streams.open(person()) for _ in range(2)]
    assert refused.value.metadata["setting"] == "access.open_streams"


def test_limits_are_read_from_the_configuration() -> None:
    config = build(AccessConfig, {"open_streams": 5, "owner_open_streams": {"a@example.org": "7"}}, source="test")
    assert (config.open_streams, config.owner_open_streams) == (5, {"a@example.org": 7.0})
    assert AccessConfig().open_streams == 250
    for bad in ({"open_streams": -1}, {"owner_open_streams": {"a": math.nan}}):
        with pytest.raises(InvalidArgument, match="open_streams"):
            build(AccessConfig, bad, source="test")


def test_all_connections_of_an_address_count_together_and_other_addresses_have_streams_of_their_own() -> None:
    streams = OpenPublicStreams(2)
    ends = [streams.open(f"ipv4:10.0.0.7:{port}") for port in (40000, 40001)]
    with pytest.raises(ResourceExhausted, match=r"^10\.0\.0\.7 has 2 health watches open.*call Check$"):
        streams.open("ipv4:10.0.0.7:40002")
    streams.open("ipv4:10.0.0.8:40002")()
    ends.pop()()
    ends.append(streams.open("ipv4:10.0.0.7:40002"))
    for end in ends:
        end()
    assert not streams._open, "an address without streams takes no memory"


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:40000", "10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:40000", "[2001:db8::1]"),
        ("ipv6:[::1]:40000", "[::1]"),
        ("unix:", "unix"),
        ("unix:/tmp/s", "unix"),
        ("", ""),
    ],
)
def test_the_address_of_a_caller_has_no_port(peer: str, host: str) -> None:
    assert host_of(peer) == host
