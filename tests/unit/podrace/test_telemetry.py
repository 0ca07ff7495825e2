"""Tests log lines and the metrics endpoint."""

import contextlib
import http.client
import json
import logging
import os
import socket
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import prometheus_client
import pytest
import structlog

from podrace import telemetry
from podrace.errors import InvalidArgument, Unavailable
from podrace.telemetry import TelemetryConfig


def test_every_line_carries_the_ids_that_were_bound(capsys):
    telemetry.start(TelemetryConfig(log_format="json", metrics_listen=""), service="learner", pod_id="p1")
    with structlog.contextvars.bound_contextvars(agent_id="a7"):
        structlog.get_logger().info("trained", steps=3)
    line = json.loads(capsys.readouterr().err)
    expected = {"service": "learner", "pod_id": "p1", "agent_id": "a7", "steps": 3, "event": "trained"}
    assert expected.items() <= line.items()


def test_lines_below_the_level_are_left_out(capsys):
    telemetry.configure_logging(TelemetryConfig(log_level="warning"))
    structlog.get_logger().info("chatter")
    structlog.get_logger().warning("trouble")
    printed = capsys.readouterr().err
    assert "chatter" not in printed
    assert "trouble" in printed


HOSTILE = "pod\x1b[2J\r\n2026-01-01 [error] forged\x07\x9b\u202e"
ESCAPED = r"pod\x1b[2J\r\n2026-01-01 [error] forged\x07\x9b\u202e"


def test_text_of_other_processes_writes_no_control_characters_to_the_console_log(capsys):
    telemetry.configure_logging(TelemetryConfig())
    structlog.get_logger().warning(HOSTILE, pod_id=HOSTILE, agent_id="\x1bx", reasons=[HOSTILE])
    (line,) = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert line.isprintable()
    assert line.count(ESCAPED) == 3
    assert r"agent_id='\x1bx'" in line


def test_a_full_disk_loses_lines_and_stops_nothing(monkeypatch):
    telemetry.configure_logging(TelemetryConfig())
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        structlog.get_logger("test").warning("lost")
        # Closing would write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_traceback_keeps_its_line_breaks_and_nothing_else(capsys):
    telemetry.configure_logging(TelemetryConfig())
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        structlog.get_logger().exception("call failed")
    lines = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert "Traceback (most recent call last):" in lines


def test_messages_of_the_standard_library_are_escaped():
    record = logging.LogRecord("urllib3", logging.WARNING, "", 0, "retry %s", (HOSTILE,), None)
    assert telemetry._EscapingFormatter("%(levelname)s %(message)s").format(record) == f"WARNING retry {ESCAPED}"


def test_metrics_are_served_at_the_address_that_is_returned():
    prometheus_client.Counter("podrace_test_things", "Counted for a test").inc()
    address = telemetry.start(TelemetryConfig(log_level="error"), service="test")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as response:
        assert b"podrace_test_things_total 1.0" in response.read()


def test_further_pages_are_served_with_their_current_content():
    prometheus_client.Counter("podrace_test_others", "Counted for a test").inc()
    body = [b"[]"]
    pages = {"/pods": lambda: ("application/json", body[-1])}
    address = telemetry.start(TelemetryConfig(log_level="error"), service="test", pages=pages)
    body.append(b"[1]")
    with urllib.request.urlopen(f"http://{address}/pods", timeout=5) as response:
        assert (response.headers["Content-Type"], response.read()) == ("application/json", b"[1]")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as response:
        assert b"podrace_test_others_total 1.0" in response.read()


def test_a_page_without_content_is_not_available_and_leaves_the_metrics_served():
    pages = {"/pods": lambda: None}
    address = telemetry.start(TelemetryConfig(log_level="error"), service="test", pages=pages)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{address}/pods", timeout=5)
    assert caught.value.code == 503
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as response:
        assert response.status == 200


def test_idle_connections_occupy_few_threads_and_metrics_are_served_after_them(capfd, monkeypatch):
    monkeypatch.setattr(telemetry._Handler, "timeout", 0.5)
    host, _, port = telemetry.start(TelemetryConfig(), service="test").rpartition(":")
    before = threading.active_count()
    opened = [socket.create_connection((host, int(port)), timeout=10) for _ in range(200)]
    for one in opened[: telemetry.MOST_CONNECTIONS]:
        one.sendall(b"GET /metrics HTTP/1.1\r\n")
    surplus = opened[telemetry.MOST_CONNECTIONS :]
    assert all(one.recv(1) == b"" for one in surplus), "further connections are closed at once"
    assert threading.active_count() <= before + telemetry.MOST_CONNECTIONS
    assert all(one.recv(1) == b"" for one in opened), "silent connections are closed"
    scrape(f"{host}:{port}")
    assert capfd.readouterr().err == ""


def test_a_connection_that_sends_slowly_is_closed(monkeypatch):
    monkeypatch.setattr(telemetry, "CONNECTION_SECONDS", 0.2)
    host, _, port = telemetry.start(TelemetryConfig(), service="test").rpartition(":")
    one = socket.create_connection((host, int(port)), timeout=0.05)
    with one, pytest.raises(OSError, match=r"(?i)reset|broken|closed"):
        send_until_closed(one)
    scrape(f"{host}:{port}")


def test_a_page_that_fails_is_logged_and_leaves_the_metrics_served(capsys):
    def fails() -> tuple[str, bytes]:
        raise ValueError("no list")

    address = telemetry.start(TelemetryConfig(), service="test", pages={"/pods": fails})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{address}/pods", timeout=5)
    assert caught.value.code == 500
    assert "no list" in capsys.readouterr().err
    scrape(address)


def send_until_closed(connection: socket.socket) -> None:
    """Sends a byte at a time; raises OSError when the other side has closed the connection."""
    while True:
        connection.sendall(b"x")
        with contextlib.suppress(TimeoutError):
            if connection.recv(1) == b"":
                raise OSError("closed")


def scrape(address: str) -> None:
    """Reads the metrics; a connection that was closed before may occupy its place for a moment."""
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as response:
                assert b"python_info" in response.read()
                return
        except (ConnectionError, http.client.RemoteDisconnected, urllib.error.URLError):
            continue


def test_a_metrics_port_in_use_fails_and_names_the_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=address):
            telemetry.start(TelemetryConfig(metrics_listen=address), service="test")


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:http", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_a_metrics_address_without_a_valid_port_is_refused(address):
    with pytest.raises(InvalidArgument) as caught:
        telemetry.start(TelemetryConfig(metrics_listen=address), service="test")
    assert caught.value.message == f"metrics_listen = {address!r}: expected host:port, the port up to 65535"
