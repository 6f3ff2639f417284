"""Files are fetched from a server that is never trusted; a real one answers on this machine."""

import gzip
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment import published
from fairbed.testbed.experiment.datasets import DatasetError, fetching
from fairbed.testbed.experiment.published import Archive, PublishedFile

CONTENT = b"age,sick\n1,0\n" * 50
NAME = "heart"


class Server:
    """Serves contents by the last part of a path."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.requests: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                content = outer.contents.get(self.path.rpartition("/")[2])
                if self.path.startswith("/moved/"):
                    self.send_response(302)
                    self.send_header("Location", content.decode() if content else "/")
                    self.end_headers()
                    return
                self.send_response(404 if content is None else 200)
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    with found.http:
        thread = threading.Thread(target=found.http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        found.http.shutdown()
        thread.join(5.0)


@pytest.fixture
def table(server: Server, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """The table of published data sets with a heart of two small files on the server."""
    files = tuple(
        PublishedFile(
            name=name,
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            size_bytes=len(CONTENT),
            url=f"{server.address}/at/{name}{packed}",
        )
        for name, packed in (("a.data", ""), ("b.data", ".gz"))
    )
    changed = {
        **published.PUBLISHED,
        NAME: replace(published.PUBLISHED[NAME], files=files),
    }
    for module in ("testbed.experiment.datasets.fetching", "testbed.cli.data"):
        monkeypatch.setattr(f"fairbed.{module}.PUBLISHED", changed)
    server.contents = {"a.data": CONTENT, "b.data.gz": gzip.compress(CONTENT)}
    return changed


def test_files_are_checked_and_kept_packed_as_they_came(
    table: Mapping[str, Any], server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "heart"
    command = ["data", "fetch", NAME, "--folder", str(folder)]
    assert main(command) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["a.data", "b.data.gz"]
    assert (folder / "a.data").read_bytes() == CONTENT
    assert "class A" in capsys.readouterr().out
    asked = len(server.requests)
    assert main(command) == 0
    assert "a.data: is here, as published" in capsys.readouterr().out
    assert len(server.requests) == asked, "nothing is fetched twice"
    other = tmp_path / "other"
    assert main([*command[:-1], str(other), "--from", f"{server.address}/mirror/"]) == 0
    assert server.requests[-1] == "/mirror/b.data.gz"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must be reachable, got: HTTP 404; try again, or give another place with --from"),
        (CONTENT[:-1] + b"x", "sha256 must be "),
        (CONTENT[:-1], "must have 650 bytes, got 649 (cut short)"),
        (CONTENT * 10, "must have at most 4,746 bytes, got more"),
        (gzip.compress(CONTENT)[:-9], "must be an intact gz file"),
        (gzip.compress(bytes(1 << 20)), "sha256 must be "),
    ],
)
def test_another_content_leaves_no_file(
    table: Mapping[str, Any], server: Server, tmp_path: Path, content: bytes | None, message: str
) -> None:
    server.contents.pop("a.data")
    if content is not None:
        server.contents["a.data"] = content
    with pytest.raises(DatasetError) as raised:
        list(fetching.fetch(NAME, tmp_path))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_time_is_limited_and_a_file_of_this_machine_is_no_place(
    table: Mapping[str, Any], server: Server, tmp_path: Path
) -> None:
    ticks = iter(range(1000))
    with pytest.raises(DatasetError, match="must arrive before its time is over, got 650 bytes"):
        list(fetching.fetch(NAME, tmp_path, limit_s=0.5, now=lambda: float(next(ticks))))
    with pytest.raises(DatasetError, match=r"--from: must be an address http:// or https://"):
        list(fetching.fetch(NAME, tmp_path, place="file:///etc"))
    server.contents["a.data"] = b"file:///etc/hosts"
    with pytest.raises(DatasetError, match="must be reachable, got: HTTP 302"):
        list(fetching.fetch(NAME, tmp_path, place=f"{server.address}/moved"))
    (tmp_path / "a.data").write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(DatasetError, match=r"a.data: sha256 must be .*; remove it, or choose"):
        list(fetching.fetch(NAME, tmp_path))


def test_members_of_a_tar_file_stay_in_the_folder(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as members:
        for name in ("cifar/data_1.bin", "../../up.bin", "cifar/readme.html"):
            member = tarfile.TarInfo(name)
            member.size = 3
            members.addfile(member, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("cifar/link.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hosts"
        members.addfile(link)
    server.contents["c.tar.gz"] = packed.getvalue()
    archive = Archive(
        url=f"{server.address}/c.tar.gz",
        md5=hashlib.md5(packed.getvalue()).hexdigest(),
        size_bytes=10_000,
        suffix=".bin",
    )
    found = replace(published.PUBLISHED["cifar100"], archive=archive)
    monkeypatch.setattr(fetching, "PUBLISHED", {"cifar100": found})
    folder = tmp_path / "deep" / "cifar100"
    assert len(list(fetching.fetch("cifar100", folder))) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["data_1.bin", "up.bin"]
    assert not list(tmp_path.glob("*.bin"))
    (folder / "data_1.bin").unlink()
    (folder / "up.bin").unlink()
    server.contents["c.tar.gz"] += b"x"
    with pytest.raises(DatasetError, match=r"md5 must be .*, as published, got "):
        list(fetching.fetch("cifar100", folder))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["imagenet"], "data fetch: must be fashion-mnist, "),
        (["heart", "--timeout", "-1"], "--timeout: must be above 0, at most 86400, got -1"),
        (["heart", "adult", "--folder", "x"], "--folder: is for one data set, got several"),
    ],
)
def test_bad_words_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "fetch", *words]) == 2
    assert message in capsys.readouterr().err


def test_what_has_no_place_is_refused_with_the_way_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "fetch", "berka", "--folder", str(tmp_path / "b")]) == 1
    assert "must have a place from which it may be fetched, got none; put loan.asc" in (
        capsys.readouterr().err
    )
