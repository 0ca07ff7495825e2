"""A local OpenID Connect provider for tests: its configuration, its keys, and tokens that it signs."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa


class IdentityProvider:
    """Serves on a free port of this machine while its block runs."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"first": rsa.generate_private_key(65537, 2048)}
        self.published = ["first"]
        self.requests: Counter[str] = Counter()
        self.fails = False
        self.redirect = ""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests[self.path] += 1
                if provider.redirect:
                    self.send_response(302)
                    self.send_header("Location", provider.redirect)
                    self.end_headers()
                    return
                pages = {"/.well-known/openid-configuration": provider.document, "/keys": provider.key_set}
                if provider.fails or self.path not in pages:
                    self.send_error(500)
                    return
                body = json.dumps(pages[self.path]()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def document(self) -> dict[str, Any]:
        return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}

    def key_set(self) -> dict[str, Any]:
        found = []
        for id in self.published:
            key = self.keys[id]
            algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
            implementation = jwt.get_algorithm_by_name(algorithm)
            public = json.loads(implementation.to_jwk(key.public_key()))
            found.append({**public, "kid": id, "alg": algorithm, "use": "sig"})
        return {"keys": found}

    def rotate(self, id: str, *, keep: bool) -> None:
        """Signs with a new key from now on; the old ones are published only if they are kept."""
        self.keys[id] = ec.generate_private_key(ec.SECP256R1())
        self.published = [*(self.published if keep else ()), id]

    def token(self, now: float, *, key: str = "", **changes: Any) -> str:
        """Returns a token that is valid for ten minutes; a change of None leaves the claim out."""
        id = key or self.published[-1]
        claims = {
            "iss": self.issuer, "sub": "alice", "aud": "podrace", "iat": now, "exp": now + 600, "groups": ["ml-team"],
        }  # fmt: skip
        claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
        algorithm = "RS256" if isinstance(self.keys[id], rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(claims, self.keys[id], algorithm=algorithm, headers={"kid": id})
