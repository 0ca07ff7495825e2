"""Calls the private methods of the `minio` package that have no public equivalent in its release 7.2.

Only this module uses names of the package that begin with an underscore:

- `_put_object`: the public `put_object` stores a condition such as If-Match as metadata of the object and overwrites
  the object. `_put_object` sends it as a header.
- `_create_multipart_upload`, `_upload_part`, `_execute` (to complete an upload), `_abort_multipart_upload` and
  `_list_multipart_uploads`: the public `put_object` uploads in parts without checksums and does not expose the steps,
  so that a failed part cannot be retried alone.
- `_build_headers`: hashes every body once more, although its digest is already known.

`check_private_methods` compares their parameters with those that this module was written for.

The public methods of 7.2.20, the newest release, have no `extra_headers`. Those of 8.x, in development, have: there,
`put_object(..., extra_headers=...)` can replace `_put_object`, and `put_object(..., checksum=...)` may replace the
other methods.
"""

import inspect
from datetime import datetime
from typing import cast
from xml.etree import ElementTree

from minio import Minio, __version__
from minio.credentials.credentials import Credentials
from minio.datatypes import ListMultipartUploadsResult
from minio.error import S3Error
from minio.helpers import DictType

from podrace.errors import Unimplemented

VERSIONS = "minio>=7.2.20,<8"
"""Releases that this module was written for."""
PRIVATE_METHODS = {
    "_build_headers": ("host", "headers", "body", "creds"),
    "_execute": ("method", "bucket_name", "object_name", "body", "headers", "query_params"),
    "_put_object": ("bucket_name", "object_name", "data", "headers"),
    "_create_multipart_upload": ("bucket_name", "object_name", "headers"),
    "_upload_part": ("bucket_name", "object_name", "data", "headers", "upload_id", "part_number"),
    "_abort_multipart_upload": ("bucket_name", "object_name", "upload_id"),
    "_list_multipart_uploads": ("bucket_name", "prefix"),
}
"""Parameters of each private method that are passed here. Other parameters must have defaults."""
SIGNED_DIGEST = "x-amz-content-sha256"


def check_private_methods(client: type[Minio] = Minio) -> None:
    """Checks that the installed package has the private methods with the parameters that this module passes.

    Raises:
        Unimplemented: A method is missing or has other parameters; the message names it and the releases that work.
    """
    for name, passed in PRIVATE_METHODS.items():
        method = getattr(client, name, None)
        if method is None:
            raise Unimplemented(f"minio {__version__} has no {name}; install '{VERSIONS}'")
        _, *parameters = inspect.signature(method).parameters.values()
        found = [parameter.name for parameter in parameters]
        required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
        if not required <= set(passed) <= set(found):
            raise Unimplemented(
                f"minio {__version__} changed {name}: it takes ({', '.join(found)}), podrace passes"
                f" ({', '.join(passed)}); install '{VERSIONS}'"
            )


class S3Client(Minio):
    """The package's client with public methods for conditional writes and uploads in parts.

    All methods take headers, which may state digests and conditions, and raise what the package raises.
    """

    def put(self, bucket: str, key: str, data: bytes, headers: DictType) -> None:
        """Writes an object in one request."""
        self._put_object(bucket_name=bucket, object_name=key, data=data, headers=headers)

    def create_upload(self, bucket: str, key: str, headers: DictType) -> str:
        """Starts an upload in parts and returns its id."""
        return self._create_multipart_upload(bucket_name=bucket, object_name=key, headers=headers)

    def upload_part(self, bucket: str, key: str, upload_id: str, number: int, data: bytes, headers: DictType) -> str:
        """Uploads one part, numbered from 1, and returns its ETag."""
        return self._upload_part(
            bucket_name=bucket, object_name=key, data=data, headers=headers, upload_id=upload_id, part_number=number
        )

    def complete_upload(self, bucket: str, key: str, upload_id: str, parts: bytes) -> None:
        """Completes an upload.

        Args:
            bucket: Name of the bucket.
            key: Key of the object.
            upload_id: As `create_upload` returned it.
            parts: Body of the request: the list of the parts in XML.

        Raises:
            S3Error: The server refused, possibly in a response with the status 200: it sends the status before it
                joins the parts.
        """
        response = self._execute(
            method="POST",
            bucket_name=bucket,
            object_name=key,
            body=parts,
            headers={"Content-Type": "application/xml"},
            query_params={"uploadId": upload_id},
        )
        if ElementTree.fromstring(response.data).tag.rpartition("}")[2] == "Error":
            raise S3Error.fromxml(response)

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Aborts an upload; the server deletes its parts."""
        self._abort_multipart_upload(bucket_name=bucket, object_name=key, upload_id=upload_id)

    def list_uploads(self, bucket: str, prefix: str) -> ListMultipartUploadsResult:
        """Lists uploads that are neither completed nor aborted, of keys that begin with a prefix."""
        return self._list_multipart_uploads(bucket_name=bucket, prefix=prefix)

    def _build_headers(
        self,
        host: str,
        headers: DictType | None = None,
        body: bytes | None = None,
        creds: Credentials | None = None,
    ) -> tuple[DictType, datetime]:
        """Signs the digest in the headers, if there is one, instead of hashing the body again.

        The package would hash the body with SHA-256, or over TLS with MD5, which is the slowest.
        """
        known = (headers or {}).get(SIGNED_DIGEST)
        if body is None or known is None:
            return super()._build_headers(host, headers, body, creds)
        built, date = super()._build_headers(host, headers, None, creds)
        return built | {SIGNED_DIGEST: cast(str, known), "Content-Length": str(len(body))}, date
