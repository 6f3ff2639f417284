"""The certificate authority of a lab and the certificate of its servers: X.509, EC P-256.

Validity begins in 2020, because a board without a clock starts in the past. The key of the server
stays when its certificate is signed again: devices that are being enrolled trust its hash.
"""

import base64
import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOT_BEFORE = datetime(2020, 1, 1, tzinfo=timezone.utc)
AUTHORITY_YEARS = 20
SERVER_YEARS = 10


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate with its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str, now: datetime) -> Certified:
    """Return a new certificate authority, valid for 20 years from `now`.

    Args:
        name: Name of the lab.
        now: With a time zone.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"Fairbed lab {name}")
    builder = (
        _dated(x509.CertificateBuilder(), now, AUTHORITY_YEARS)
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Certified(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def sign_server(
    authority: Certified, addresses: Iterable[str], now: datetime, key: bytes | None = None
) -> Certified:
    """Return a certificate for a server, valid for 10 years from `now`.

    Args:
        authority: Signs it.
        addresses: Host names and IP addresses that clients use.
        now: With a time zone.
        key: Private key of the server, PEM; None makes a new one.

    Raises:
        ValueError: A PEM cannot be read.
    """
    own = ec.generate_private_key(ec.SECP256R1()) if key is None else _load_key(key)
    signer = _load_key(authority.key)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    names = [_general_name(address) for address in dict.fromkeys(addresses)]
    builder = (
        _dated(x509.CertificateBuilder(), now, SERVER_YEARS)
        .subject_name(_subject("Fairbed lab server"))
        .issuer_name(issuer.subject)
        .public_key(own.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    return Certified(_pem(builder.sign(signer, hashes.SHA256())), _key_pem(own))


def addresses_of(certificate: bytes) -> list[str]:
    """Return the host names and IP addresses that a certificate is valid for.

    Raises:
        ValueError: The PEM cannot be read.
    """
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """Return the first and the last instant at which a certificate is valid, UTC.

    Raises:
        ValueError: The PEM cannot be read.
    """
    loaded = x509.load_pem_x509_certificate(certificate)
    return loaded.not_valid_before_utc, loaded.not_valid_after_utc


def key_pin(certificate: bytes) -> str:
    """Return the base64 SHA-256 of the public key, as in `curl --pinnedpubkey sha256//PIN`.

    Raises:
        ValueError: The PEM cannot be read.
    """
    public = x509.load_pem_x509_certificate(certificate).public_key()
    encoded = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.b64encode(hashlib.sha256(encoded).digest()).decode()


def _dated(builder: x509.CertificateBuilder, now: datetime, years: int) -> x509.CertificateBuilder:
    # A host whose clock is wrong, too, must not make a certificate that has ended already.
    begin = max(now, NOT_BEFORE)
    end = begin.replace(month=1, day=1, year=begin.year + years + 1)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(end)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"must be a key of an elliptic curve, got {type(key).__name__}")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
