"""Tokens of Kubernetes are reviewed by its API server; foreign, expired and unknown ones are refused."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from kubernetes import client

from podrace.access.authenticators.token_review import TokenReviewAuthenticator
from podrace.access.credentials import Credentials
from podrace.access.principal import ROLES_BY_NAME, Principal
from podrace.access.provider_config import TokenReviewConfig
from podrace.errors import InvalidArgument, Unauthenticated, Unavailable

TRAINER = "system:serviceaccount:team-a:trainer"
ROLES = (f"{TRAINER}=user", "group:ml-admins=operator")
SECRET = "a secret of the API server of this test only"


class ApiServer:
    """Answers TokenReviews over HTTP as the API server does, for tokens that it has signed itself."""

    def __init__(self) -> None:
        self.reviewed: list[dict[str, Any]] = []
        self.forbidden = False
        self.deleted: set[str] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.reviewed.append(body["spec"])
                status = 403 if server.forbidden or self.path != "/apis/authentication.k8s.io/v1/tokenreviews" else 201
                text = json.dumps({**body, "status": server.status(body["spec"])}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def status(self, spec: dict[str, Any]) -> dict[str, Any]:
        try:
            claims = jwt.decode(spec["token"], SECRET, algorithms=["HS256"], audience=spec["audiences"])
        except jwt.PyJWTError as error:
            return {"authenticated": False, "error": f"[invalid bearer token, {error}]"}
        if claims["sub"] in self.deleted:
            return {"authenticated": False, "error": "service account has been deleted"}
        user = {"username": claims["sub"], "groups": claims.get("groups", [])}
        return {"authenticated": True, "audiences": claims["aud"], "user": user}


@pytest.fixture(scope="module")
def served() -> Iterator[ApiServer]:
    server = ApiServer()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


@pytest.fixture
def server(served: ApiServer) -> ApiServer:
    served.reviewed.clear()
    served.deleted.clear()
    served.forbidden = False
    return served


NOW = 1_000_000.0


@pytest.fixture
def authenticator(server: ApiServer) -> TokenReviewAuthenticator:
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.http.server_port}"
    configuration.retries = 0
    api = client.AuthenticationV1Api(client.ApiClient(configuration))
    return TokenReviewAuthenticator(TokenReviewConfig("podrace", ROLES), api=api, now=lambda: NOW)


def token(secret: str = SECRET, **changes: Any) -> str:
    claims = {"sub": TRAINER, "aud": ["podrace"], "exp": 99_999_999_999, **changes}
    return jwt.encode(claims, secret, algorithm="HS256")


async def answer(authenticator: TokenReviewAuthenticator, presented: str) -> Principal | None:
    return await authenticator.authenticate(Credentials(presented, "ipv4:10.0.0.9:1"))


async def test_a_service_account_has_its_role_in_its_namespace(
    authenticator: TokenReviewAuthenticator, server: ApiServer
) -> None:
    trainer = await answer(authenticator, token())
    assert trainer is not None
    assert (trainer.name, trainer.namespace, trainer.via) == (TRAINER, "team-a", "kubernetes")
    assert trainer.roles == {ROLES_BY_NAME["user"], ROLES_BY_NAME["viewer"]}
    assert trainer.expire_time == NOW + 60.0
    assert [each["audiences"] for each in server.reviewed] == [["podrace"]]


async def test_groups_give_roles_and_a_user_named_like_a_group_has_none(
    authenticator: TokenReviewAuthenticator,
) -> None:
    admin = await answer(authenticator, token(sub="root@example.org", groups=["ml-admins"]))
    assert admin is not None
    assert ROLES_BY_NAME["operator"] in admin.roles
    assert admin.namespace == ""
    with pytest.raises(Unauthenticated, match="ml-admins has no role here"):
        await answer(authenticator, token(sub="ml-admins"))


def unverifiable(audience: Any) -> str:
    """A token with any claim, which the library for tokens refuses to make."""
    parts = ({"alg": "HS256"}, {"sub": TRAINER, "aud": audience}, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


@pytest.mark.parametrize(
    "presented",
    [
        "",
        "opaque",
        token(aud="another"),
        token(aud=["https://kubernetes.default.svc"]),
        *map(unverifiable, (7, 0.5, None, True, {"podrace": 1}, [None, 7, ["podrace"]])),
    ],
)
async def test_tokens_that_were_not_issued_for_this_mesh_never_reach_the_api_server(
    authenticator: TokenReviewAuthenticator, server: ApiServer, presented: str
) -> None:
    assert await answer(authenticator, presented) is None
    assert not server.reviewed


@pytest.mark.parametrize(
    ("presented", "message"),
    [
        (token(exp=1), "Signature has expired"),
        (token(secret="the key of another cluster, long enough"), "Signature verification failed"),
        (token(sub="system:serviceaccount:team-b:intern"), "intern has no role here"),
    ],
)
async def test_expired_and_forged_tokens_and_unknown_callers_are_refused(
    authenticator: TokenReviewAuthenticator, presented: str, message: str
) -> None:
    with pytest.raises(Unauthenticated, match=message):
        await answer(authenticator, presented)


async def test_a_deleted_service_account_is_refused(authenticator: TokenReviewAuthenticator, server: ApiServer) -> None:
    assert await answer(authenticator, token())
    server.deleted.add(TRAINER)
    with pytest.raises(Unauthenticated, match="has been deleted"):
        await answer(authenticator, token())


async def test_a_missing_right_is_named_and_the_token_is_not_quoted(
    authenticator: TokenReviewAuthenticator, server: ApiServer
) -> None:
    server.forbidden = True
    presented = token()
    with pytest.raises(Unavailable, match="needs the right to create tokenreviews") as refused:
        await answer(authenticator, presented)
    assert presented not in refused.value.message


def test_a_wrong_role_is_refused_at_start() -> None:
    with pytest.raises(InvalidArgument, match="unknown role 'admin'"):
        TokenReviewAuthenticator(TokenReviewConfig("podrace", ("a=admin",)), api=object())  # type: ignore[arg-type]
