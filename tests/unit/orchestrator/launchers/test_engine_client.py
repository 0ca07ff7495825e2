import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import docker.errors
import pytest
import requests

from orchestrator.launchers.engine_client import SharedClient

TIMEOUT_SECONDS = 10.0
LOST = requests.exceptions.ConnectionError("Connection aborted.")
TIMED_OUT = requests.exceptions.ReadTimeout("Read timed out.")
ANSWERS = (docker.errors.APIError("conflict"), docker.errors.ImageNotFound("no such image"))


class Client:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def made() -> list[Client]:
    return []


@pytest.fixture
def shared(made: list[Client]) -> SharedClient:
    def connect() -> Client:
        made.append(Client())
        return made[-1]

    return SharedClient(connect)


def fail_with(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_error_that_the_engine_answers_keeps_the_client(
    shared: SharedClient, made: list[Client], answer: Exception
) -> None:
    for _ in range(5):
        with pytest.raises(type(answer)):
            shared.call(fail_with(answer))
    assert [client.closed for client in made] == [0]


@pytest.mark.parametrize("error", [LOST, TIMED_OUT])
def test_a_client_that_lost_its_connection_is_closed_and_replaced(
    shared: SharedClient, made: list[Client], error: Exception
) -> None:
    for _ in range(3):
        with pytest.raises(type(error)):
            shared.call(fail_with(error))
    assert shared.call(lambda: shared.client) is made[3]
    assert [client.closed for client in made] == [1, 1, 1, 0]


def test_a_client_is_closed_when_the_last_call_that_uses_it_returns(shared: SharedClient, made: list[Client]) -> None:
    running, finish = threading.Event(), threading.Event()

    def use() -> tuple[Client, int, Client]:
        before = shared.client
        running.set()
        assert finish.wait(TIMEOUT_SECONDS)
        return before, before.closed, shared.client

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(shared.call, use)
        assert running.wait(TIMEOUT_SECONDS)
        with pytest.raises(requests.exceptions.ConnectionError):
            shared.call(fail_with(LOST))
        assert made[0].closed == 0
        assert shared.call(lambda: shared.client) is made[1]
        finish.set()
        assert other.result(TIMEOUT_SECONDS) == (made[0], 0, made[0])
    assert [client.closed for client in made] == [1, 0]


def test_of_two_clients_that_are_created_at_once_one_is_closed() -> None:
    together, made = threading.Barrier(2), [Client(), Client()]
    left = iter(made)

    def connect() -> Client:
        together.wait(TIMEOUT_SECONDS)
        return next(left)

    shared = SharedClient(connect)
    with ThreadPoolExecutor(2) as pool:
        used = [pool.submit(shared.call, lambda: shared.client) for _ in range(2)]
        clients = {call.result(TIMEOUT_SECONDS) for call in used}
    assert len(clients) == 1
    assert [client.closed for client in made if client not in clients] == [1]


def test_closing_closes_the_client_and_needs_none(shared: SharedClient, made: list[Client]) -> None:
    shared.close()
    assert not made
    shared.call(lambda: None)
    shared.close()
    shared.close()
    assert [client.closed for client in made] == [1]


def test_after_a_failed_connect_the_next_call_connects_again() -> None:
    failures = [docker.errors.DockerException("Connection aborted.")]

    def connect() -> Client:
        if failures:
            raise failures.pop()
        return Client()

    shared = SharedClient(connect)
    with pytest.raises(docker.errors.DockerException):
        shared.call(lambda: None)
    assert shared.call(lambda: shared.client.closed) == 0
