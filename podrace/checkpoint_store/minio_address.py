"""Parses the URI of a `minio` store and reads its credentials from the environment.

    minio://HOST[:PORT]/BUCKET[/PREFIX]         with TLS
    minio+http://HOST[:PORT]/BUCKET[/PREFIX]    without TLS, for a trusted network

A URI appears in configurations, command lines and logs, so it never carries credentials. They come from the
environment of each process, or from files that the environment names, such as mounted secrets.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from podrace.errors import FailedPrecondition, InvalidArgument

SCHEMES = {"minio": True, "minio+http": False}
"""Whether each scheme uses TLS."""
FORM = "minio://HOST[:PORT]/BUCKET[/PREFIX], or minio+http://... without TLS"
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
FOLDER = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]+")
FAMILIES = (
    ("PODRACE_STORE_ACCESS_KEY", "PODRACE_STORE_SECRET_KEY", "PODRACE_STORE_SESSION_TOKEN"),
    ("MINIO_ACCESS_KEY", "MINIO_SECRET_KEY", "MINIO_SESSION_TOKEN"),
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
"""Variables of access key, secret key and session token; the first family that has an access key is used."""
REGIONS = ("PODRACE_STORE_REGION", "AWS_REGION", "AWS_DEFAULT_REGION")
CA_FILES = ("PODRACE_STORE_CA_FILE", "SSL_CERT_FILE")
DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True)
class Address:
    """Location of a store."""

    endpoint: str
    """Host, and port if it is not the default."""
    secure: bool
    """Whether to connect with TLS."""
    bucket: str
    """Name of the bucket."""
    prefix: str
    """Prefix of the keys of all its objects: empty, or ending with a slash."""

    @property
    def uri(self) -> str:
        """The URI of this location."""
        scheme = next(scheme for scheme, secure in SCHEMES.items() if secure is self.secure)
        return f"{scheme}://{self.endpoint}/{self.bucket}/{self.prefix}".rstrip("/")


def parse_address(uri: str, *, what: str = "checkpoint store") -> Address:
    """Parses a URI.

    Args:
        uri: In the form of the module's description.
        what: Kind of thing that the URI names, for the message.

    Raises:
        InvalidArgument: The URI is malformed or carries credentials; the message does not repeat them.
    """
    scheme, _, rest = uri.partition("://")
    shown = f"{scheme}://{rest.rpartition('@')[2]}"
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(f"{what} {shown!r}: {error}; write {FORM}") from None
    if "@" in parts.netloc:
        raise InvalidArgument(
            f"{what} {shown!r}: a URI is logged and must not contain credentials; set"
            f" {FAMILIES[0][0]} and {FAMILIES[0][1]}"
        )
    if parts.query or parts.fragment:
        raise InvalidArgument(f"{what} {shown!r}: takes no parameters; write {FORM}")
    bucket, *folders = parts.path.strip("/").split("/")
    if not host or port == 0 or not BUCKET.fullmatch(bucket):
        raise InvalidArgument(f"{what} {shown!r}: names no host and bucket; write {FORM}")
    if not all(FOLDER.fullmatch(folder) for folder in folders):
        raise InvalidArgument(
            f"{what} {shown!r}: a prefix consists of letters, digits, '.', '_' and '-' between single slashes"
        )
    return Address(parts.netloc, SCHEMES[scheme], bucket, "".join(f"{folder}/" for folder in folders))


@dataclass(frozen=True)
class Access:
    """Credentials and connection settings of a store."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    """Region of the bucket; empty: ask the server."""
    ca_file: str = ""
    """File of the certificate authorities to trust; empty: the default ones."""
    found_in: str = ""
    """Name of the variable that held the access key, for messages."""


def read_access(address: Address, environ: Mapping[str, str]) -> Access:
    """Reads credentials, region and certificates from the environment, or from the files it names.

    Access key, secret key and session token may also be given as VARIABLE_FILE, the name of a file with the value.

    Raises:
        FailedPrecondition: There are no credentials, or a file cannot be read.
    """
    for family in FAMILIES:
        access_key, secret_key, session_token = (_value(environ, name) for name in family)
        if access_key and not secret_key:
            raise FailedPrecondition(f"{family[0]} is set without {family[1]}: {address.uri} needs both")
        if access_key:
            # The host names of Amazon contain the region, or the server is asked. Other servers use the default region.
            region = _first(environ, REGIONS) or ("" if address.endpoint.endswith("amazonaws.com") else DEFAULT_REGION)
            ca_file = read_ca_file(address, environ)
            return Access(access_key, secret_key, session_token, region, ca_file, found_in=family[0])
    names = ", or ".join(f"{access_key} and {secret_key}" for access_key, secret_key, _ in FAMILIES)
    raise FailedPrecondition(
        f"{address.uri} needs credentials: set {names}; each may also be given as VARIABLE_FILE, the name of a file"
    )


def read_ca_file(address: Address, environ: Mapping[str, str]) -> str:
    """Returns the file of the certificate authorities to trust; empty: the default ones.

    Raises:
        FailedPrecondition: The file does not exist.
    """
    ca_file = _first(environ, CA_FILES)
    if ca_file and address.secure and not Path(ca_file).is_file():
        raise FailedPrecondition(f"{' or '.join(CA_FILES)} = {ca_file!r}: the file does not exist")
    return ca_file


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _value(environ: Mapping[str, str], name: str) -> str:
    if environ.get(name):
        return environ[name]
    path = environ.get(f"{name}_FILE", "")
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not text"
        raise FailedPrecondition(f"{name}_FILE = {path!r}: cannot be read: {cause}") from None
