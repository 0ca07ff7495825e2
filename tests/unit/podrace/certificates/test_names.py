"""Names of principals in certificates are read back as they were written, and nothing else is accepted."""

import pytest

from podrace.certificates.names import PEOPLE, ROLES, SpiffeName
from podrace.errors import InvalidArgument


@pytest.mark.parametrize("namespace", ["", "vision"])
@pytest.mark.parametrize("name", ["", "alice", "gpu01.example.org"])
@pytest.mark.parametrize("role", ROLES)
def test_a_name_is_read_back_as_it_was_written(role: str, name: str, namespace: str) -> None:
    if role in PEOPLE and not name:
        with pytest.raises(InvalidArgument, match="needs the name of its holder"):
            SpiffeName(role, name, namespace)
        return
    written = SpiffeName(role, name, namespace, "example.org")
    assert SpiffeName.parse(written.uri) == written


def test_the_role_is_the_first_part_of_the_path() -> None:
    assert SpiffeName("orchestrator").uri == "spiffe://podrace/orchestrator"
    assert SpiffeName("user", "alice", "vision").uri == "spiffe://podrace/ns/vision/user/alice"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "expected spiffe://"),
        ("https://podrace/orchestrator", "expected spiffe://"),
        ("spiffe://podrace", "expected spiffe://"),
        ("spiffe://podrace/", "expected spiffe://"),
        ("spiffe://podrace/user/alice/orchestrator", "expected spiffe://"),
        ("spiffe://podrace/ns/vision", "unknown role 'ns'"),
        ("spiffe://podrace/ns//user/alice", "expected spiffe://|unknown role"),
        ("spiffe://podrace/administrator", "unknown role 'administrator'"),
        ("spiffe://podrace/user/..", "expected up to 63 letters"),
        ("spiffe://podrace/user/a b", "expected up to 63 letters"),
        ("spiffe://podrace/user/alice\n", "expected up to 63 letters"),
        ("spiffe://Podrace/orchestrator", "trust domain"),
        ("spiffe:///orchestrator", "trust domain"),
    ],
)
def test_anything_else_is_refused(uri: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SpiffeName.parse(uri)
