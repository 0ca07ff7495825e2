"""Tests that the installed `minio` package has the private methods that the S3 client calls."""

import ast
from pathlib import Path
from typing import Any

import minio
import pytest

from podrace.checkpoint_store import minio_private
from podrace.checkpoint_store.minio_private import PRIVATE_METHODS, VERSIONS, check_private_methods
from podrace.errors import Unimplemented


def test_the_installed_package_has_the_private_methods_that_are_called() -> None:
    """Fails with the name and the parameters of the method that a new release of `minio` removed or changed."""
    check_private_methods()


def private_names(path: Path) -> set[str]:
    """Returns the private methods of the package's client that a module refers to."""
    private = {name for name in vars(minio.Minio) if name.startswith("_") and not name.startswith("__")}
    return {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)} & private


def test_every_private_method_that_is_called_is_checked_and_no_other_module_calls_one() -> None:
    folder = Path(minio_private.__file__).parent
    found = {path.name: names for path in folder.glob("*.py") if (names := private_names(path))}
    assert found == {"minio_private.py": set(PRIVATE_METHODS)}


class Renamed(minio.Minio):
    """A release that renamed a parameter."""

    def _put_object(self, bucket_name: str, object_name: str, body: bytes, headers: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError


class Extended(minio.Minio):
    """A release that added a required parameter."""

    def _put_object(  # type: ignore[override]
        self, bucket_name: str, object_name: str, data: bytes, headers: Any, region: str
    ) -> Any:
        raise NotImplementedError


class Compatible(minio.Minio):
    """A release that added an optional parameter."""

    def _put_object(  # type: ignore[override]
        self, bucket_name: str, object_name: str, data: bytes, headers: Any, region: str = ""
    ) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("release", "parameters"),
    [
        (Renamed, "bucket_name, object_name, body, headers"),
        (Extended, "bucket_name, object_name, data, headers, region"),
    ],
)
def test_a_release_that_changed_a_method_is_refused_by_name(release: type[minio.Minio], parameters: str) -> None:
    with pytest.raises(Unimplemented) as refusal:
        check_private_methods(release)
    assert refusal.value.message == (
        f"minio {minio.__version__} changed _put_object: it takes ({parameters}), podrace passes"
        f" (bucket_name, object_name, data, headers); install '{VERSIONS}'"
    )


def test_a_release_with_a_further_optional_parameter_is_accepted() -> None:
    check_private_methods(Compatible)
