"""Issues certificates and revocation lists of a development authority. Pure functions: the time is an argument.

Keys are ECDSA keys on the curve P-256, which every TLS library accepts.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from podrace.certificates.names import PEOPLE, SCHEME, SpiffeName
from podrace.errors import FailedPrecondition, InvalidArgument

CLOCK_DIFFERENCE = timedelta(minutes=5)
"""Certificates are valid from this long before they are issued, because clocks of machines differ."""
LIST_LIFETIME = timedelta(days=3650)
RENEWED_PART = 1 / 3
"""A certificate is due for renewal when less than this part of its lifetime remains."""


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key as PEM (PKCS #8), not encrypted."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def load_pair(certificate_pem: bytes, key_pem: bytes) -> KeyPair:
    """Reads a certificate and its key.

    Raises:
        FailedPrecondition: One of them is not PEM, or the key is not one that this module makes.
    """
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
        certificate = x509.load_pem_x509_certificate(certificate_pem)
    except (ValueError, TypeError) as error:
        raise FailedPrecondition(f"a certificate or its key is not PEM: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise FailedPrecondition("the key does not belong to the certificate; restore both from one copy")
    return KeyPair(certificate, key)


def issue_authority(trust_domain: str, now: datetime, lifetime: timedelta) -> KeyPair:
    """Makes a new authority, which may sign certificates but no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{trust_domain} development authority")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(subject, subject, key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"{SCHEME}{trust_domain}")]), critical=False
        )
    )
    return KeyPair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: KeyPair, name: SpiffeName, hosts: Sequence[str], now: datetime, lifetime: timedelta) -> KeyPair:
    """Makes a key and a certificate that the authority has signed.

    Args:
        authority: The authority.
        name: Role and name of the holder, which become the URI of the certificate.
        hosts: DNS names and IP addresses where the holder listens. A person without any cannot serve.
        now: Present time, with a time zone.
        lifetime: Time that the certificate is valid; it ends with the authority's certificate at the latest.

    Raises:
        InvalidArgument: A host is neither a DNS name nor an IP address.
        FailedPrecondition: The authority has expired.
    """
    remaining = authority.certificate.not_valid_after_utc - now
    if remaining <= timedelta():
        raise FailedPrecondition("the authority has expired; make a new one in another folder, for all services")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, (name.name or name.role)[:64])])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if name.role not in PEOPLE or hosts:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    names = [x509.UniformResourceIdentifier(name.uri), *map(host_name, hosts)]
    issuer_key = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(subject, authority.certificate.subject, key, now, min(lifetime, remaining))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key),
            critical=False,
        )
    )
    return KeyPair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_DIFFERENCE)
        .not_valid_after(now + lifetime)
    )


def host_name(host: str) -> x509.GeneralName:
    """Returns a DNS name or an IP address as a certificate has it.

    Raises:
        InvalidArgument: It is neither.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    if not all(label and label.strip("-") == label and label.replace("-", "").isalnum() for label in labels):
        raise InvalidArgument(f"host {host!r}: expected a DNS name or an IP address, without a port")
    if not host.isascii() or host.replace(".", "").isdigit():
        raise InvalidArgument(f"host {host!r}: expected a DNS name or an IP address, without a port")
    return x509.DNSName(host)


def is_due(begins: datetime, expires: datetime, now: datetime) -> bool:
    """Returns whether a certificate should be renewed."""
    return expires - now < (expires - begins) * RENEWED_PART


def names_of(certificate: x509.Certificate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the URIs of a certificate, and its DNS names and IP addresses."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return (), ()
    addresses = (str(address) for address in names.get_values_for_type(x509.IPAddress))
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier)), (
        *names.get_values_for_type(x509.DNSName),
        *addresses,
    )


def revocation_list(
    authority: KeyPair, revoked: Iterable[tuple[int, datetime]], now: datetime
) -> x509.CertificateRevocationList:
    """Signs the list of revoked certificates.

    Args:
        authority: The authority.
        revoked: Serial number of each certificate, and when it was revoked.
        now: Present time.
    """
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now - CLOCK_DIFFERENCE)
        .next_update(now + LIST_LIFETIME)
    )
    for serial, time in revoked:
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(time).build()
        )
    return builder.sign(authority.key, hashes.SHA256())
