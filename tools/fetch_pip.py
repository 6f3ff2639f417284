"""Install pip into the environment of this Python, which lacks it: python tools/fetch_pip.py.

For a Python without ensurepip, as Debian's `python3` package is. The wheel comes from the package
index that pip itself would ask: `PIP_INDEX_URL`, `PIP_EXTRA_INDEX_URL` and `PIP_CERT`, or the same
keys of pip's configuration files, or pypi.org. Its hash is pinned here, so any index will do.
"""

import configparser
import hashlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import Request, urlopen

WHEEL = "pip-26.3-py3-none-any.whl"
SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"

PYPI = "https://pypi.org/simple"
TIMEOUT_S = 60.0
"""Longest wait for an answer of an index."""
INSTALL_S = 300.0
"""Longest installation of the wheel: seconds on a Raspberry Pi."""
LARGEST = 64 << 20
"""Bytes that are read of an answer; pip's own page of an index has 1 MB."""


class FetchError(Exception):
    """No index has the wheel; one line."""


def main() -> int:
    """Install pip; return the exit status."""
    settings = pip_settings()
    indexes = [settings.get("index-url", PYPI), *settings.get("extra-index-url", "").split()]
    try:
        wheel = fetch(indexes, settings.get("cert"))
    except FetchError as exc:
        print(f"fetch_pip: {exc}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, WHEEL)
        path.write_bytes(wheel)
        command = [sys.executable, f"{path}/pip", "install", "-q", "--no-index", str(path)]
        return subprocess.run(command, timeout=INSTALL_S, check=False).returncode


def pip_settings() -> dict[str, str]:
    """Return pip's settings by key: its configuration files, then the environment."""
    home = Path.home()
    folders = os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    files = [Path(folder, "pip", "pip.conf") for folder in folders]
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf"]
    files += [Path(os.environ.get("XDG_CONFIG_HOME", home / ".config"), "pip", "pip.conf")]
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        files = []
    elif named:
        files.append(Path(named))
    parser = configparser.RawConfigParser()
    parser.read(files, encoding="utf-8")
    settings: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            settings |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    for key in ("index-url", "extra-index-url", "cert"):
        value = os.environ.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            settings[key] = value
    return settings


def fetch(indexes: list[str], cert: str | None) -> bytes:
    """Return the wheel from the first index that has it.

    Args:
        indexes: URLs of the simple repository API.
        cert: File of the certificates to trust; the system's are used by default.

    Raises:
        FetchError: No index has it, with the reason of each.
    """
    reasons = []
    for index in indexes:
        page = f"{index.rstrip('/')}/pip/"
        shown = urlsplit(page)._replace(netloc=urlsplit(page).netloc.rpartition("@")[2]).geturl()
        try:
            text = read(page + "index.html" * page.startswith("file:"), cert).decode("utf-8")
            links = re.findall(r"""href\s*=\s*["']([^"']+)["']""", text, re.IGNORECASE)
            urls = [urljoin(page, urldefrag(link.replace("&amp;", "&")).url) for link in links]
            url = next((url for url in urls if urlsplit(url).path.endswith(f"/{WHEEL}")), None)
            if url is None:
                reasons.append(f"{shown} does not list it")
                continue
            wheel = read(url, cert)
        except (URLError, OSError, ValueError) as exc:
            reasons.append(f"{shown}: {getattr(exc, 'reason', None) or exc}")
            continue
        if hashlib.sha256(wheel).hexdigest() == SHA256:
            return wheel
        reasons.append(f"{shown} has another file of this name, with another SHA-256")
    raise FetchError(f"{WHEEL} must come from a package index: {'; '.join(reasons)}")


def read(url: str, cert: str | None) -> bytes:
    """Return what is at a URL, whose user and password are sent as basic authentication."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    request = Request(parts._replace(netloc=host).geturl())
    if login:
        basic = b64encode(unquote(login).encode()).decode()
        request.add_header("Authorization", f"Basic {basic}")
    context = ssl.create_default_context(cafile=cert) if parts.scheme == "https" else None
    with urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
        content: bytes = answer.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"an answer must have at most {LARGEST:,} bytes")
    return content


if __name__ == "__main__":
    sys.exit(main())
