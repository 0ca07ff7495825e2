"""Only the holder of the token is answered, and only a page of the dashboard may change something."""

import pytest

from podrace.dashboard import access
from podrace.dashboard.access import Keys, accepts_host, is_change, names_of, own_origins, refused_change

OWN = "http://127.0.0.1:7780"


def test_token_cookie_and_change_value_differ_and_none_replaces_another():
    keys = Keys("secret")
    assert len({keys.token, keys.cookie, keys.change}) == 3
    assert keys.is_token("secret")
    assert keys.is_cookie(keys.cookie)
    assert is_change(keys.change, keys.change)
    assert not keys.is_cookie("secret")
    assert not is_change(keys.cookie, keys.change)
    assert not keys.is_token(keys.cookie)
    assert not keys.is_token("")


def test_values_of_another_token_are_refused():
    assert not Keys("a").is_cookie(Keys("b").cookie)


@pytest.mark.parametrize("text", ["x" * 10_000, "ü", "secret\n"])
def test_an_odd_token_is_refused(text):
    assert not Keys("secret").is_token(text)


@pytest.mark.parametrize("host", ["127.0.0.1:7780", "localhost", "LOCALHOST:80", "[::1]:7780"])
def test_local_names_are_accepted(host):
    assert accepts_host(host, names_of("127.0.0.1", ()))


@pytest.mark.parametrize("host", ["attacker.example", "attacker.example:7780", "", "127.0.0.1.attacker.example"])
def test_another_name_for_the_same_address_is_refused(host):
    assert not accepts_host(host, names_of("127.0.0.1", ()))


def test_names_of_a_proxy_can_be_added():
    for listen_host in ("127.0.0.1", "0.0.0.0"):
        assert accepts_host("dash.example", names_of(listen_host, ("Dash.Example",)))
    assert accepts_host("[fd00::1]:80", names_of("fd00::1", ()))
    assert names_of("0.0.0.0", ()) == frozenset()
    assert not accepts_host("other.example", names_of("0.0.0.0", ("dash.example",)))


def change(**other):
    given = {"origin": OWN, "own_origins": [OWN], "fetch_site": "same-origin", "content_type": "application/json"}
    return refused_change(**{**given, **other})


def test_a_change_from_a_page_of_the_dashboard_is_accepted():
    assert change() == ""
    assert change(fetch_site=None, content_type="application/json; charset=utf-8") == ""


@pytest.mark.parametrize(
    "other",
    [
        {"origin": None},
        {"origin": "null"},
        {"origin": "http://attacker.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://127.0.0.1:7780"},
        {"fetch_site": "cross-site"},
        {"fetch_site": "same-site"},
        {"content_type": "text/plain"},
        {"content_type": "application/x-www-form-urlencoded"},
    ],
)
def test_a_change_from_elsewhere_is_refused(other):
    assert change(**other)


def test_behind_a_proxy_that_provides_tls_the_page_has_another_scheme_than_the_request():
    assert own_origins("http", "dash.example", behind_proxy=True) == ("http://dash.example", "https://dash.example")
    assert own_origins("http", "dash.example", behind_proxy=False) == ("http://dash.example",)
    assert own_origins("https", "dash.example", behind_proxy=True) == ("https://dash.example",)


def test_a_session_over_tls_has_a_cookie_that_no_other_host_can_set():
    assert access.session_cookie_name(7780, secure=True).startswith("__Host-")
    assert access.session_cookie_name(7780, secure=False) != access.session_cookie_name(7781, secure=False)


def test_dashboards_on_two_ports_have_two_cookies():
    assert access.cookie_name(1) != access.cookie_name(2)
