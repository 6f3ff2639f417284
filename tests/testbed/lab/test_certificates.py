"""Certificates of a lab, checked by OpenSSL."""

import base64
import hashlib
import socket
import ssl
import subprocess
import threading
from datetime import datetime, timezone
from pathlib import Path

import pytest

from fairbed.testbed.lab.certificates import (
    Certified,
    addresses_of,
    key_pin,
    make_authority,
    sign_server,
    validity,
)

NOW = datetime(2026, 11, 23, tzinfo=timezone.utc)
NAMES = ["localhost", "127.0.0.1", "::1", "lab.local"]


@pytest.fixture(scope="module")
def authority() -> Certified:
    return make_authority("kitchen", NOW)


def _handshake(folder: Path, server: Certified, ca: bytes, host: str) -> None:
    """Connect with full verification; raise what the client finds."""
    (folder / "chain.pem").write_bytes(server.certificate + server.key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "chain.pem")
    client = ssl.create_default_context(cadata=ca.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            serving.wrap_socket(left, server_side=True).close()
        except (ssl.SSLError, OSError):
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(right, server_hostname=host).close()
    finally:
        right.close()
        thread.join()


@pytest.mark.parametrize("host", NAMES)
def test_a_client_accepts_the_server_by_each_name(
    tmp_path: Path, authority: Certified, host: str
) -> None:
    _handshake(tmp_path, sign_server(authority, NAMES, NOW), authority.certificate, host)


def test_a_client_refuses_another_name_and_another_authority(
    tmp_path: Path, authority: Certified
) -> None:
    server = sign_server(authority, NAMES, NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _handshake(tmp_path, server, authority.certificate, "elsewhere.local")
    other = make_authority("kitchen", NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(tmp_path, server, other.certificate, "localhost")


def test_a_board_without_a_clock_accepts_it_too(authority: Certified) -> None:
    server = sign_server(authority, NAMES, NOW)
    assert validity(authority.certificate)[0] == datetime(2020, 1, 1, tzinfo=timezone.utc)
    assert validity(authority.certificate)[1].year == 2047
    assert validity(server.certificate)[0].year == 2020
    assert validity(server.certificate)[1].year == 2037


def test_a_host_without_a_clock_makes_a_certificate_that_lasts() -> None:
    made = make_authority("kitchen", datetime(1970, 1, 1, tzinfo=timezone.utc))
    assert validity(made.certificate)[1].year == 2041


def test_the_key_and_its_pin_stay_when_it_is_signed_again(authority: Certified) -> None:
    first = sign_server(authority, NAMES, NOW)
    second = sign_server(authority, ["10.0.0.1"], NOW, first.key)
    assert second.key == first.key
    assert key_pin(second.certificate) == key_pin(first.certificate)
    assert addresses_of(second.certificate) == ["10.0.0.1"]
    assert addresses_of(first.certificate) == NAMES


def test_the_pin_is_that_of_openssl(tmp_path: Path, authority: Certified) -> None:
    server = sign_server(authority, NAMES, NOW)
    (tmp_path / "server.pem").write_bytes(server.certificate)
    public = subprocess.run(
        ["openssl", "x509", "-in", str(tmp_path / "server.pem"), "-pubkey", "-noout"],
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    der = base64.b64decode(b"".join(public.splitlines()[1:-1]))
    assert key_pin(server.certificate) == base64.b64encode(hashlib.sha256(der).digest()).decode()
