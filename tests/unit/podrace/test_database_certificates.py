"""The certificate of a PostgreSQL server is verified, and an error names the setting that is missing."""

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from leaderboard.store.schema import DATABASE_FORMAT
from podrace.database.postgresql import PostgresqlServer
from podrace.errors import FailedPrecondition, Unavailable

AUTHORITY = trustme.CA()


@pytest.fixture
def server() -> Iterator[PostgresqlServer]:
    """Returns a server that ends each connection after the handshake of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("localhost").configure_cert(context)
    context.set_alpn_protocols(["postgresql"])
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(8)
                connection.sendall(b"S")
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    url = f"postgresql://u@localhost:{port}/d?sslmode=verify-full&sslrootcert=system&hostaddr=127.0.0.1"
    yield PostgresqlServer(url, "", DATABASE_FORMAT)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def test_a_server_whose_authority_is_not_found_is_refused_with_the_setting_that_names_it(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with pytest.raises(FailedPrecondition, match=r"certificate verify failed; name the authority.* SSL_CERT_DIR=/etc/"):
        server.connect()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_authorities_of_the_system_are_found_in_the_folder_that_the_images_name(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    subprocess.run(["openssl", "rehash", str(tmp_path)], check=True)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with pytest.raises(Unavailable):
        server.connect()
