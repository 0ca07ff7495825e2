"""Calls a Kubernetes API server with plain JSON objects, and turns its errors into one line with a remedy.

Objects are plain JSON, not the classes of the kubernetes package: those belong to one API version and reject objects of
newer or older servers.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from podrace.database.leadership import CheckLeads, only_replica
from podrace.errors import InvalidArgument, NotFound, PodraceError, Unavailable

Object = Mapping[str, Any]
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
TIMEOUT_SECONDS = 10.0
PAGE = 500
RESTARTS = 3
"""Attempts to read a list whose continuation token expires."""
LONGEST_PAUSE_SECONDS = 30.0


@dataclass(frozen=True)
class ApiResponse:
    """Response of the server."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class SendRequest(Protocol):
    """Sends one request; raises OSError if the server does not respond."""

    def __call__(self, method: str, path: str, query: Mapping[str, str], body: Object | None) -> ApiResponse:
        """Blocks for at most TIMEOUT_SECONDS."""
        ...


class ApiClient:
    """Client of the API server for one namespace. Every method blocks.

    client = ApiClient(*connect(""))
    client.create("batch/v1", "jobs", {...})
    for job in client.list("batch/v1", "jobs", labels="podrace/scope=podrace"): ...
    client.delete("batch/v1", "jobs", job)
    """

    def __init__(
        self,
        send: SendRequest,
        namespace: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        check_leads: CheckLeads = only_replica,
    ) -> None:
        """Creates the client; it sends nothing yet.

        Args:
            send: Sends a request to the server.
            namespace: Namespace of all namespaced objects.
            monotonic: Clock for servers that request a pause (Retry-After).
            check_leads: Called before each object is created or deleted; raises Unavailable if that is refused.
        """
        self._send, self.namespace, self._monotonic, self._check_leads = send, namespace, monotonic, check_leads
        self._not_before = 0.0

    def get(self, group: str, kind: str, name: str) -> Object | None:
        """Returns an object; None if it does not exist."""
        answer = self._request("GET", self._path(group, kind, name), missing=True)
        return None if answer is None else _object(answer)

    def list(
        self, group: str, kind: str, *, labels: str = "", fields: str = "", everywhere: bool = False
    ) -> Sequence[Object]:
        """Returns all matching objects, page by page; starts again if the continuation token expires.

        Raises:
            Unavailable: The continuation token has expired RESTARTS times.
        """
        query = {"limit": str(PAGE)}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        path = self._path(group, kind, everywhere=everywhere)
        for _ in range(RESTARTS):
            found = self._pages(path, query)
            if found is not None:
                return found
        raise Unavailable(f"the Kubernetes API cannot complete a list of {kind}: its continuation token keeps expiring")

    def create(self, group: str, kind: str, body: Object) -> Object | None:
        """Creates an object; returns None if one with that name exists."""
        self._check_leads()
        answer = self._request("POST", self._path(group, kind), body=body, present=True)
        return None if answer is None else _object(answer)

    def delete(
        self, group: str, kind: str, seen: Object, *, propagation: str = "", grace_seconds: int | None = None
    ) -> None:
        """Deletes an object that was read before, if it still exists.

        The request names the uid of the object. If another object has got its name since, that one is left unchanged,
        however late the request arrives.
        """
        name, uid = seen["metadata"]["name"], seen["metadata"]["uid"]
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        if propagation:
            options["propagationPolicy"] = propagation
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        self._check_leads()
        self._request("DELETE", self._path(group, kind, name), body=options, missing=True, replaced=True)

    def log(self, pod: str, container: str, lines: int) -> str:
        """Returns the end of a container's log; empty if it is not available."""
        query = {"container": container, "tailLines": str(lines)}
        try:
            answer = self._request("GET", f"{self._path('v1', 'pods', pod)}/log", query=query, missing=True)
        except (InvalidArgument, Unavailable):
            # The container never started, its node is down, or this service may not read logs; the log is optional.
            return ""
        return "" if answer is None else answer.content.decode(errors="replace")

    # --- requests ---------------------------------------------------------------------------------------------

    def _pages(self, path: str, query: Mapping[str, str]) -> Sequence[Object] | None:
        """Returns all pages of a list; None if it must start again."""
        found: list[Object] = []
        token = ""
        while True:
            answer = self._request("GET", path, query={**query, "continue": token} if token else query, expired=True)
            if answer is None:
                return None
            page = _object(answer)
            found += page.get("items") or []
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return found

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        missing: bool = False,
        present: bool = False,
        replaced: bool = False,
        expired: bool = False,
    ) -> ApiResponse | None:
        """Sends a request once; returns None for the errors that the caller accepts."""
        if self._monotonic() < self._not_before:
            raise Unavailable("the Kubernetes API is overloaded and requested a pause")
        try:
            answer = self._send(method, path, query or {}, body)
        except OSError as error:
            raise Unavailable(f"the Kubernetes API does not respond: {_one_line(error)}") from None
        if answer.status < 300:
            return answer
        accepted = {404: missing, 409: replaced, 410: expired}.get(answer.status, False)
        if accepted or (present and _exists(answer)):
            return None
        if answer.status in (429, 503):
            pause = answer.headers.get("Retry-After", "")
            seconds = float(pause) if pause.isdigit() else 0.0
            self._not_before = self._monotonic() + min(seconds, LONGEST_PAUSE_SECONDS)
        raise error_of(answer, f"{method} {path}", self.namespace)

    def _path(self, group: str, kind: str, name: str = "", *, everywhere: bool = False) -> str:
        root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        within = "" if everywhere else f"/namespaces/{self.namespace}"
        return f"{root}{within}/{kind}" + (f"/{name}" if name else "")


def error_of(answer: ApiResponse, operation: str, namespace: str) -> PodraceError:
    """Converts an error response to an error with one line of text and a remedy."""
    message = _message(answer)
    if answer.status == 401:
        return Unavailable(f"the Kubernetes API rejects the credentials: {message}; check that they are still valid")
    if answer.status == 403 and "exceeded quota" in message:
        return Unavailable(f"a quota of namespace {namespace!r} is exhausted: {message}")
    if answer.status == 403:
        return Unavailable(
            f"the Kubernetes API denies permission: {message}; give this service account the Role of deploy/k8s/base"
        )
    if answer.status == 404 and "namespaces" in message:
        return Unavailable(f"there is no namespace {namespace!r}: {message}; set kubernetes.namespace")
    if answer.status == 404:
        return NotFound(f"{operation}: {message}")
    if answer.status in (400, 422):
        return InvalidArgument(f"the Kubernetes API rejects the request: {message}")
    if answer.status == 429:
        return Unavailable(f"the Kubernetes API is overloaded: {message}")
    return Unavailable(f"the Kubernetes API reports an error: {operation}: {answer.status} {message}")


def connect(namespace: str) -> tuple[SendRequest, str]:
    """Finds the API server of the cluster this runs in, or of KUBECONFIG, and the namespace if none is given.

    Raises:
        Unavailable: There is neither.
    """
    from kubernetes import client
    from kubernetes import config as untyped

    config: Any = untyped
    configuration = client.Configuration()
    configuration.retries = 1
    try:
        if OWN_NAMESPACE.exists():
            config.load_incluster_config(configuration)
            found = OWN_NAMESPACE.read_text().strip()
        else:
            config.load_kube_config(client_configuration=configuration)
            found = config.list_kube_config_contexts()[1]["context"].get("namespace", "default")
    except (config.ConfigException, OSError) as error:
        raise Unavailable(
            f"no Kubernetes cluster is configured: {_one_line(error)}; run in a cluster, or set KUBECONFIG"
        ) from None
    return _sender(client.ApiClient(configuration)), namespace or found


def _sender(api: Any) -> SendRequest:
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    headers = {"Accept": "application/json, */*", "Content-Type": "application/json"}

    def send(method: str, path: str, query: Mapping[str, str], body: Object | None) -> ApiResponse:
        request = api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
            return ApiResponse(response.status, response.read(), dict(response.headers))
        except (HTTPError, ApiException) as error:
            raise OSError(_one_line(error)) from None

    return send


def _object(answer: ApiResponse) -> Object:
    try:
        found: Object = json.loads(answer.content)
    except ValueError:
        raise Unavailable(f"the Kubernetes API did not respond with JSON: {answer.content[:100]!r}") from None
    return found


def _message(answer: ApiResponse) -> str:
    """Error text of the server: the message of its Status, or the beginning of its response."""
    try:
        message = json.loads(answer.content)["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.content.decode(errors="replace")
    return " ".join(str(message).split())[:300]


def _exists(answer: ApiResponse) -> bool:
    try:
        return answer.status == 409 and bool(json.loads(answer.content)["reason"] == "AlreadyExists")
    except (ValueError, KeyError, TypeError):
        return False


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
