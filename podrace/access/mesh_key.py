"""Signs and verifies tokens with the key of the mesh (Ed25519, JSON Web Tokens with the algorithm EdDSA).

The orchestrator signs; the leaderboard and pods verify with the public key. PyJWT and cryptography are imported when a
key is first used: an embedded mesh needs none.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from podrace.access.private_file import make_private_file
from podrace.errors import FailedPrecondition, Unauthenticated

ISSUER = "podrace"
ALGORITHM = "EdDSA"
LEEWAY_SECONDS = 5.0
"""Tolerated difference between the clocks of two machines when the expiry of a token is checked."""
MOST_HEADERS = 64
"""Number of token headers that are cached; all tokens of one key have the same header."""
REQUIRED_CLAIMS = ("iss", "aud", "sub", "exp")


class MeshKey:
    """The private key of a mesh.

    key = MeshKey.load_or_make(path)
    token = key.sign({"aud": "podrace", "sub": "orchestrator", "exp": now + 300.0, ...})
    key.public.verify(token, audience="podrace")
    """

    def __init__(self, pem: bytes, now: Callable[[], float] = time.time) -> None:
        """Reads the key.

        Args:
            pem: The private key, PEM.
            now: Returns the seconds since 1970.

        Raises:
            ValueError: This is not an Ed25519 private key.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(pem, password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("not an Ed25519 private key")
        self._key = key
        self.public = PublicKeys([_public_pem(key.public_key())], now)

    @classmethod
    def load_or_make(cls, path: Path) -> "MeshKey":
        """Reads the key from a file, which is made if it does not exist.

        Raises:
            FailedPrecondition: The file cannot be made or read, others can read it, or it is not such a key.
        """
        try:
            return cls(make_private_file(path, make_pem))
        except ValueError as error:
            raise FailedPrecondition(f"{path}: {error}; expected an Ed25519 private key in PEM") from None

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Returns a token with these claims; `iss` is added. `exp` is in seconds since 1970."""
        import jwt

        return jwt.encode(
            {"iss": ISSUER, **claims}, self._key, algorithm=ALGORITHM, headers={"kid": self.public.first_id}
        )


class PublicKeys:
    """The public keys of a mesh: one, or several while the key is replaced."""

    def __init__(self, pems: Sequence[bytes], now: Callable[[], float] = time.time) -> None:
        """Reads the keys.

        Args:
            pems: The keys, PEM.
            now: Returns the seconds since 1970.

        Raises:
            ValueError: One of them is not an Ed25519 public key.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        self._now = now
        self.pems = tuple(pems)
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._keys_of_headers: dict[str, Ed25519PublicKey] = {}
        for pem in pems:
            key = load_pem_public_key(pem)
            if not isinstance(key, Ed25519PublicKey):
                raise ValueError("not an Ed25519 public key")
            self._keys[_key_id(_public_pem(key))] = key

    @classmethod
    def load(cls, paths: Sequence[Path]) -> "PublicKeys":
        """Reads the keys from files.

        Raises:
            FailedPrecondition: A file cannot be read, or is not such a key.
        """
        pems = []
        for path in paths:
            try:
                pems.append(_without_certificate(path.read_bytes()))
                cls(pems[-1:])
            except OSError as error:
                raise FailedPrecondition(f"{path}: cannot be read: {error.strerror}") from None
            except ValueError as error:
                raise FailedPrecondition(f"{path}: {error}; expected an Ed25519 public key in PEM") from None
        return cls(pems)

    @property
    def first_id(self) -> str:
        """Id of the first key; it is in the header of every token that this key has signed."""
        return next(iter(self._keys))

    def have_signed(self, token: str) -> bool:
        """Whether the header of a token names one of these keys; `verify` checks the signature."""
        return self._key_of(token) is not None

    def _key_of(self, token: str) -> Any:
        header = token.partition(".")[0]
        if known := self._keys_of_headers.get(header):
            return known
        named = self._key_named_in(token)
        if named and len(self._keys_of_headers) < MOST_HEADERS:
            self._keys_of_headers[header] = named
        return named

    def _key_named_in(self, token: str) -> Any:
        import jwt

        try:
            return self._keys.get(str(jwt.get_unverified_header(token).get("kid")))
        except jwt.InvalidTokenError:
            return None

    def verify(self, token: str, *, audience: str | Sequence[str]) -> dict[str, Any]:
        """Returns the claims of a token for this audience, or for one of several.

        Raises:
            Unauthenticated: None of the keys has signed it, it has expired, or it is meant for another audience.
        """
        import jwt

        key = self._key_of(token)
        if key is None:
            raise Unauthenticated("the token was not signed by the key of this mesh; get another one")
        checks: Any = {"require": list(REQUIRED_CLAIMS), "verify_exp": False, "verify_iat": False, "verify_nbf": False}
        try:
            claims: dict[str, Any] = jwt.decode(
                token, key, algorithms=[ALGORITHM], audience=audience, issuer=ISSUER, options=checks
            )
            expires = float(claims["exp"])
        except (jwt.InvalidTokenError, ValueError, TypeError) as error:
            raise Unauthenticated(f"the token is not valid here: {error}; get another one") from None
        if not expires > self._now() - LEEWAY_SECONDS:
            raise Unauthenticated("the token has expired; get another one")
        return claims


def make_pem() -> bytes:
    """Returns a new private key, PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _without_certificate(pem: bytes) -> bytes:
    """Returns the public key of a certificate: cert-manager stores public keys in certificates."""
    if b"BEGIN CERTIFICATE" not in pem:
        return pem
    from cryptography.x509 import load_pem_x509_certificate

    return _public_pem(load_pem_x509_certificate(pem).public_key())


def _public_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def _key_id(public_pem: bytes) -> str:
    return hashlib.sha256(public_pem).hexdigest()[:16]
