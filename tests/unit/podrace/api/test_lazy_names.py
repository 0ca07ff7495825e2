import subprocess
import sys

import pytest

import podrace

HEAVY = {"torch", "numpy", "grpc", "google.protobuf", "click", "rich", "pandas"}


def imported_by(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.long
def test_the_package_imports_few_modules() -> None:
    assert not imported_by("import podrace") & HEAVY


@pytest.mark.long
def test_training_and_reading_need_neither_numpy_nor_torch() -> None:
    imported = imported_by("from podrace import train, connect, open_home, aio, Tournament")
    assert not imported & {"torch", "numpy", "pandas"}


def test_every_name_of_the_interface_can_be_imported_and_is_listed() -> None:
    for name in podrace._INTERFACE:
        assert getattr(podrace, name) is not None
    assert set(podrace._INTERFACE) == set(podrace.api.__all__)
    assert {*podrace._INTERFACE, "load_policy"} <= set(dir(podrace))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        podrace.trian  # noqa: B018
