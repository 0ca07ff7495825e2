"""Tests the URIs and credentials of the store `minio`."""

from pathlib import Path

import pytest

from podrace.checkpoint_store.minio_address import Address, parse_address, read_access
from podrace.errors import FailedPrecondition, InvalidArgument

ADDRESS = Address("store:9000", secure=True, bucket="bucket", prefix="")
KEYS = {"PODRACE_STORE_ACCESS_KEY": "key", "PODRACE_STORE_SECRET_KEY": "secret"}


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("minio://store/bucket", Address("store", True, "bucket", "")),
        ("minio://store:9000/bucket/", Address("store:9000", True, "bucket", "")),
        ("minio+http://10.0.0.1:9000/my.bucket-1/a/b_c", Address("10.0.0.1:9000", False, "my.bucket-1", "a/b_c/")),
        ("minio+http://[::1]:9000/bucket/..a", Address("[::1]:9000", False, "bucket", "..a/")),
    ],
)
def test_a_uri_names_host_bucket_and_prefix(uri: str, address: Address) -> None:
    assert parse_address(uri) == address
    assert parse_address(address.uri) == address


@pytest.mark.parametrize(
    ("uri", "line"),
    [
        ("minio://", "names no host and bucket"),
        ("minio://store", "names no host and bucket"),
        ("minio:///bucket", "names no host and bucket"),
        ("minio://store/B", "names no host and bucket"),
        ("minio://store:port/bucket", "[Pp]ort"),
        ("minio://store:99999/bucket", "[Pp]ort"),
        ("minio://store/bucket/a//b", "between single slashes"),
        ("minio://store/bucket/../other", "between single slashes"),
        ("minio://store/bucket/a b", "between single slashes"),
        ("minio://store/bucket?secure=0", "takes no parameters"),
        ("minio://store/bucket#a", "takes no parameters"),
    ],
)
def test_a_malformed_uri_is_refused_with_the_expected_form(uri: str, line: str) -> None:
    with pytest.raises(InvalidArgument, match=line) as refusal:
        parse_address(uri)
    assert "\n" not in refusal.value.message


def test_credentials_in_a_uri_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidArgument, match="PODRACE_STORE_ACCESS_KEY") as refusal:
        parse_address("minio://username:hunter2@store/bucket")
    assert "hunter2" not in refusal.value.message
    assert "username" not in refusal.value.message


def test_the_first_family_of_variables_that_is_set_is_used() -> None:
    amazon = {
        "AWS_ACCESS_KEY_ID": "aws",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "t",
        "AWS_REGION": "mars-1",
    }
    access = read_access(ADDRESS, amazon)
    assert (access.access_key, access.secret_key, access.session_token, access.region) == ("aws", "s", "t", "mars-1")
    minio = {"MINIO_ACCESS_KEY": "minio", "MINIO_SECRET_KEY": "s"}
    assert read_access(ADDRESS, amazon | minio).access_key == "minio"
    access = read_access(ADDRESS, amazon | minio | KEYS)
    assert (access.access_key, access.secret_key, access.session_token) == ("key", "secret", "")
    assert access.found_in == "PODRACE_STORE_ACCESS_KEY"


def test_credentials_may_be_in_files(tmp_path: Path) -> None:
    (tmp_path / "access").write_text("key\n")
    (tmp_path / "secret").write_text(" secret \n")
    files = {f"{name}_FILE": str(tmp_path / file) for name, file in zip(KEYS, ("access", "secret"), strict=True)}
    access = read_access(ADDRESS, files)
    assert (access.access_key, access.secret_key) == ("key", "secret")
    with pytest.raises(FailedPrecondition, match=r"PODRACE_STORE_SECRET_KEY_FILE = .*gone.*cannot be read"):
        read_access(ADDRESS, files | {"PODRACE_STORE_SECRET_KEY_FILE": str(tmp_path / "gone")})


def test_missing_credentials_are_reported_with_the_variables_to_set() -> None:
    with pytest.raises(FailedPrecondition, match=r"needs credentials: set PODRACE_STORE_ACCESS_KEY and .*_FILE"):
        read_access(ADDRESS, {})
    with pytest.raises(FailedPrecondition, match="PODRACE_STORE_ACCESS_KEY is set without PODRACE_STORE_SECRET_KEY"):
        read_access(ADDRESS, {"PODRACE_STORE_ACCESS_KEY": "key"})


def test_a_secret_is_not_shown() -> None:
    assert "secret'" not in repr(read_access(ADDRESS, KEYS | {"PODRACE_STORE_SESSION_TOKEN": "token'"}))


def test_the_default_region_is_used_except_for_amazon() -> None:
    assert read_access(ADDRESS, KEYS).region == "us-east-1"
    assert read_access(ADDRESS, KEYS | {"PODRACE_STORE_REGION": "eu-7", "AWS_REGION": "x"}).region == "eu-7"
    amazon = parse_address("minio://s3.amazonaws.com/bucket")
    assert read_access(amazon, KEYS).region == ""


def test_a_file_of_certificates_must_exist(tmp_path: Path) -> None:
    own, usual = tmp_path / "own.pem", tmp_path / "usual.pem"
    usual.touch()
    assert read_access(ADDRESS, KEYS | {"SSL_CERT_FILE": str(usual)}).ca_file == str(usual)
    with pytest.raises(FailedPrecondition, match="PODRACE_STORE_CA_FILE"):
        read_access(ADDRESS, KEYS | {"PODRACE_STORE_CA_FILE": str(own), "SSL_CERT_FILE": str(usual)})
