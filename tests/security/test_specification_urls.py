"""A specification names URLs: only allowed hosts are fetched from, never the addresses of machines' credentials.

Before there were limits, pandas fetched any URL that `path` named, from the pod, and followed redirects. The first line
of the answer was in the public reason why the tournament failed.
"""

import http.server
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from podrace.errors import DeadlineExceeded, InvalidArgument, PodraceError, ResourceExhausted, Unavailable
from podrace.limits.addresses import is_metadata
from podrace.limits.config import EVERYTHING, NOTHING, Allowed
from podrace.limits.fetching import fetch
from podrace.limits.urls import url_problem
from simulators import make
from simulators.stocks.data import load_prices

PRICES = b"date,ticker,high,low,close\n2020-01-02,A,2,1,1.5\n"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves prices, redirects, and answers that are too large, too slow or wrong."""

    def do_GET(self) -> None:
        path, _, target = self.path.partition("?")
        self.server.asked.append((self.headers["Host"], path))  # type: ignore[attr-defined]
        if path in ("/redirect", "/loop"):
            self.send_response(302)
            self.send_header("Location", target or path)
            self.end_headers()
            return
        if path in DRIPPING:
            self._drip(DRIPPING[path])
            return
        body = {"/secret": b"hunter2\n", "/large.csv": b"x" * 5000}.get(path, PRICES)
        self.send_response(404 if path == "/absent" else 200)
        if path != "/endless":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        while path == "/endless" and not self.server.released.wait(0.01):  # type: ignore[attr-defined]
            self.wfile.write(b"x")

    def _drip(self, begin: bytes) -> None:
        """Sends one byte each time that the client reads its clock, until it has not done so for a second."""
        self.wfile.write(begin)
        while self.server.clock_reads.acquire(timeout=1.0):  # type: ignore[attr-defined]
            self.wfile.write(b"x")

    def log_message(self, *_: object) -> None:
        pass


DRIPPING = {
    "/status": b"HTTP/1.1 200 ",
    "/header": b"HTTP/1.1 200 OK\r\nX-Drip: ",
    "/chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    "/body": b"HTTP/1.1 200 OK\r\n\r\n",
}
"""What is sent before single bytes, by path."""


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.released = [], threading.Event()  # type: ignore[attr-defined]
    made.clock_reads = threading.Semaphore(0)  # type: ignore[attr-defined]
    made.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.released.set()  # type: ignore[attr-defined]
    made.shutdown()
    made.server_close()


@pytest.fixture
def here(server: http.server.ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def resolving(**hosts: Sequence[str]) -> Callable[[str, int], Sequence[str]]:
    return lambda host, port: hosts[host.replace(".", "_")]


# --- the attacks -----------------------------------------------------------------------------------------------------


def test_a_standing_service_fetches_nothing_by_default(here: str, server: http.server.ThreadingHTTPServer) -> None:
    """Used to fail with `columns missing: ... (found: hunter2)`, after it had fetched the URL."""
    with pytest.raises(InvalidArgument, match=r"^environment\.options\.path = .*allow\.url_hosts"):
        make("stocks", 1, {"path": f"{here}/secret"}, allowed=NOTHING)
    assert server.asked == []  # type: ignore[attr-defined]


def test_the_first_line_of_an_answer_is_not_quoted(here: str) -> None:
    for path in ("/secret", "/absent"):
        with pytest.raises(PodraceError) as caught:
            load_prices(here + path, allowed=EVERYTHING)
        assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://169.254.170.2/v2/credentials",
        "http://[fd00:ec2::254]/latest/",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://metadata.google.internal/computeMetadata/v1/",
        "http://METADATA.google.internal./",
        "http://100.100.100.200/",
        "http://168.63.129.16/",
    ],
)
def test_addresses_of_credentials_are_never_fetched(url: str) -> None:
    for allowed in (NOTHING, EVERYTHING, Allowed(url_hosts=("http://169.254.169.254", "*.internal"))):
        assert "never fetched" in url_problem(url, allowed)
        with pytest.raises(InvalidArgument, match="never fetched"):
            fetch(url, allowed)


@pytest.mark.parametrize("answer", ["169.254.169.254", "fd00:ec2::254", "fe80::1%eth0", "::ffff:169.254.169.254"])
@pytest.mark.parametrize("allowed", [EVERYTHING, Allowed(url_hosts=("http://data.example",))])
def test_dns_cannot_lead_to_addresses_of_credentials(answer: str, allowed: Allowed) -> None:
    for addresses in ([answer], ["93.184.216.34", answer]):
        with pytest.raises(InvalidArgument, match="has an address that is never connected to"):
            fetch("http://data.example/x.csv", allowed, resolving(data_example=addresses))


def test_a_number_that_means_an_address_is_checked_as_that_address() -> None:
    """The resolver of the system reads 2852039166 as 169.254.169.254."""
    with pytest.raises(InvalidArgument, match="never connected to"):
        fetch("http://2852039166/x.csv", EVERYTHING, resolving(**{"2852039166": ["169.254.169.254"]}))


@pytest.mark.parametrize("answer", ["127.0.0.1", "::1", "0.0.0.0"])
def test_dns_cannot_lead_to_this_machine(answer: str) -> None:
    allowed = Allowed(url_hosts=("http://data.example",))
    with pytest.raises(InvalidArgument, match="never connected to"):
        fetch("http://data.example/x.csv", allowed, resolving(data_example=[answer]))


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("http://169.254.169.254/latest/", "never fetched"),
        ("http://other.example/x", "not allowed here"),
        ("file:///etc/passwd", "expected http"),
        ("http://user:word@127.0.0.1/", "expected http"),
    ],
)
def test_a_redirect_is_checked_as_the_url_was(here: str, target: str, line: str) -> None:
    allowed = Allowed(url_hosts=(here,))
    with pytest.raises(InvalidArgument, match=line):
        fetch(f"{here}/redirect?{target}", allowed)


# --- what is fetched -------------------------------------------------------------------------------------------------


def test_an_allowed_host_is_fetched_from_with_redirects(here: str) -> None:
    allowed = Allowed(url_hosts=(here,))
    with fetch(f"{here}/prices.csv", allowed) as file:
        assert file.read() == PRICES
    with fetch(f"{here}/redirect?/prices.csv", allowed) as file:
        assert file.read() == PRICES
    assert load_prices(f"{here}/prices.csv", allowed=allowed).tickers == ("A",)
    with pytest.raises(Unavailable, match="more than 5 redirects"):
        fetch(f"{here}/loop", allowed)


def test_the_connection_goes_to_the_address_that_was_checked(server: http.server.ThreadingHTTPServer) -> None:
    """A name that is resolved twice may get another answer the second time."""
    port = server.server_port
    with fetch(f"http://data.example:{port}/x.csv", EVERYTHING, resolving(data_example=["127.0.0.1"])) as file:
        assert file.read() == PRICES
    assert server.asked == [(f"data.example:{port}", "/x.csv")]  # type: ignore[attr-defined]


def test_size_and_time_are_limited(here: str) -> None:
    with pytest.raises(ResourceExhausted, match=r"more than 4000 bytes \(allow\.url_bytes\)"):
        fetch(f"{here}/large.csv", Allowed(url_hosts=(here,), url_bytes=4000))
    with pytest.raises((DeadlineExceeded, Unavailable)):
        fetch(f"{here}/endless", Allowed(url_hosts=(here,), url_seconds=0.3))


@pytest.mark.parametrize("path", DRIPPING)
def test_a_server_that_sends_single_bytes_is_left_at_the_deadline(
    path: str, here: str, server: http.server.ThreadingHTTPServer
) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        server.clock_reads.release()  # type: ignore[attr-defined]
        return now

    with pytest.raises(DeadlineExceeded, match=r"takes more than 30 s \(allow\.url_seconds\)"):
        fetch(here + path, Allowed(url_hosts=(here,), url_seconds=30.0), clock=clock)
    assert now == 31.0


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://data.example/x", True),
        ("https://DATA.example./x", True),
        ("http://data.example/x", False),
        ("https://data.example:8443/x", False),
        ("https://evil.example/data.example", False),
        ("https://data.example.evil/x", False),
        ("https://data.example@evil.example/x", False),
        ("https://ports.example:8443/x", True),
        ("https://ports.example/x", False),
        ("https://a.many.example/x", True),
        ("https://many.example/x", False),
        ("https://evilmany.example/x", False),
        ("http://plain.example/x", True),
        ("https://data.example/x\r\nHost: evil", False),
        ("ftp://data.example/x", False),
        ("file:///etc/passwd", False),
        ("s3://bucket/key", False),
    ],
)
def test_hosts_are_allowed_by_name_scheme_and_port(url: str, allowed: bool) -> None:
    hosts = ("data.example", "ports.example:8443", "*.many.example", "http://plain.example")
    assert (url_problem(url, Allowed(url_hosts=hosts)) == "") is allowed


def test_only_addresses_and_names_of_credentials_are_taken_for_such() -> None:
    assert not any(map(is_metadata, ("10.0.0.1", "data.example", "fd00::1", "127.0.0.1", "169.253.0.1")))
