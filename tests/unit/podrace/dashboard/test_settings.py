"""A dashboard that other machines reach needs TLS, and its token is private."""

import stat

import pytest
import trustme

from podrace.dashboard.feed_cache import IDLE_SECONDS, to_close
from podrace.dashboard.settings import DashboardSettings
from podrace.errors import FailedPrecondition, InvalidArgument


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:7780", "127.0.0.1:7780"])
def test_it_may_listen_on_this_machine(listen):
    DashboardSettings(listen).check()


@pytest.mark.parametrize("listen", ["0.0.0.0:7780", "192.0.2.1:7780", "[::]:7780"])
def test_where_other_machines_reach_it_it_needs_tls(listen, tmp_path):
    with pytest.raises(FailedPrecondition, match="other machines reach it"):
        DashboardSettings(listen).check()
    DashboardSettings(listen, insecure=True).check()
    DashboardSettings(listen, certificate=tmp_path / "c", key=tmp_path / "k").check()


@pytest.mark.parametrize("listen", ["7780", "127.0.0.1", ":7780", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_of_another_form_is_refused(listen):
    with pytest.raises(InvalidArgument, match="HOST:PORT"):
        DashboardSettings(listen).check()


def test_a_certificate_needs_its_key(tmp_path):
    with pytest.raises(InvalidArgument, match="both or none"):
        DashboardSettings(certificate=tmp_path / "c").check()


def test_a_missing_certificate_is_named(tmp_path):
    with pytest.raises(FailedPrecondition, match="--tls-certificate"):
        DashboardSettings(certificate=tmp_path / "c", key=tmp_path / "k").tls()


def test_where_persons_sign_in_there_is_no_token_of_the_dashboard(tmp_path):
    DashboardSettings(sign_in=True).check()
    with pytest.raises(InvalidArgument, match="--token-file"):
        DashboardSettings(sign_in=True, token_file=tmp_path / "token").check()


def test_the_token_stays_the_same_and_only_its_user_can_read_it(tmp_path):
    path = tmp_path / "token"
    first = DashboardSettings(token_file=path).token()
    assert DashboardSettings(token_file=path).token() == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(FailedPrecondition, match="other users can read it"):
        DashboardSettings(token_file=path).token()


def test_idle_feeds_are_closed():
    assert to_close({"a": 0.0, "b": IDLE_SECONDS + 1}, {"a": 1, "b": 1}) == ["b"]


def test_above_a_limit_the_longest_unused_feeds_are_closed():
    ages = {"a": 3.0, "b": 2.0, "c": 1.0}
    assert to_close(ages, dict.fromkeys(ages, 1), feeds=2) == ["a"]
    assert to_close(ages, {"a": 10, "b": 10, "c": 10}, most_points=20) == ["a"]


def test_a_single_feed_stays_however_large_it_is():
    assert to_close({"a": 0.0}, {"a": 10**9}) == []


def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(tmp_path):
    authority = trustme.CA()
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write():
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(key)
        certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))

    write()
    tls = DashboardSettings(certificate=certificate, key=key).tls()
    assert tls is not None
    assert not tls.renew()
    write()
    assert tls.renew()
    assert not tls.renew()
    key.write_text("broken")
    with pytest.raises(FailedPrecondition, match="--tls-key"):
        tls.renew()
    write()
    assert tls.renew()
