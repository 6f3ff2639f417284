"""Host names, origins, tokens and cookies of the web server."""

import pytest

from fairbed.testbed.web.access import MAX_COOKIES, Access


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
@pytest.mark.parametrize(
    ("header", "is_ours"),
    [
        ("127.0.0.1:8885", True),
        ("127.0.0.1:9000", True),  # a tunnel
        ("localhost:8885", True),
        ("LOCALHOST", True),
        ("[::1]:8885", True),
        ("evil.example:8885", False),
        ("127.0.0.1.evil.example:8885", False),
        ("192.168.1.20:8885", False),
        ("[::1", True),
        ("", False),
        (None, False),
    ],
)
def test_a_server_on_loopback_answers_to_loopback_alone(
    host: str, header: str | None, is_ours: bool
) -> None:
    assert Access(host).is_host(header) is is_ours


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.20", "lab.local"])
def test_a_server_beyond_loopback_answers_to_addresses_and_its_name(host: str) -> None:
    access = Access(host)
    assert access.is_host("192.168.1.20:8885")
    assert access.is_host("[fe80::1]:8885")
    assert access.is_host(f"{host}:8885")
    assert not access.is_host("evil.example:8885")


@pytest.mark.parametrize(
    ("origin", "is_own"),
    [
        ("http://127.0.0.1:8885", True),
        ("https://127.0.0.1:8885", True),  # behind a proxy with TLS
        ("http://127.0.0.1:9000", False),  # another server of this machine
        ("http://evil.example", False),
        ("null", False),
        ("127.0.0.1:8885", False),
        ("file://127.0.0.1:8885", False),
        ("", False),
        (None, False),
    ],
)
def test_an_origin_is_own_with_the_host_and_port_of_the_request(
    origin: str | None, is_own: bool
) -> None:
    assert Access("127.0.0.1").is_own_origin(origin, "127.0.0.1:8885") is is_own
    assert not Access("127.0.0.1").is_own_origin(origin, None)


def test_a_token_is_good_for_one_cookie() -> None:
    access = Access("127.0.0.1")
    first = access.token
    cookie = access.redeem(first)
    assert access.has_cookie(cookie)
    assert access.redeem(first) is None
    assert access.token != first
    for wrong in ("", "\udc80", "x" * 43, cookie or ""):
        assert access.redeem(wrong) is None
    for value in (None, "", first, access.token):
        assert not access.has_cookie(value)


def test_the_oldest_cookie_makes_room_for_the_newest() -> None:
    access = Access("127.0.0.1")
    cookies = [access.redeem(access.token) for _ in range(MAX_COOKIES + 1)]
    assert not access.has_cookie(cookies[0])
    assert all(access.has_cookie(cookie) for cookie in cookies[1:])
