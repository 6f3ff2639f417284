"""A pack of another person is read with care."""

import hashlib
import io
import sys
import tarfile
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    import backports.zstd as zstd

from fairbed.testbed.packs.archive import (
    opened_pack,
    sha256_of,
    unpack_archive,
    write_archive,
)
from fairbed.testbed.packs.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    PackedFile,
    PackError,
    check_place,
)

Member: TypeAlias = tuple[tarfile.TarInfo, bytes]

CONTENTS: dict[str, bytes] = {"run/run.db": b"rows" * 700, "work/mine.toml": b"", "README.md": b"x"}


def of(place: str, content: bytes) -> PackedFile:
    return PackedFile(place=place, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def manifest_of(*files: PackedFile) -> Manifest:
    return Manifest(
        format=FORMAT, fairbed="0", packed="2026", kind="run", name="x", runs=[], files=list(files)
    )


GOOD = manifest_of(*(of(place, content) for place, content in CONTENTS.items()))


def member(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        info.linkname, info.size = "/etc/passwd", 0
    return info, content


def packed(
    path: Path,
    manifest: Manifest | bytes,
    *members: Member,
    form: int = tarfile.USTAR_FORMAT,
) -> Path:
    """Write an archive, as another program would."""
    content = manifest if isinstance(manifest, bytes) else msgspec.json.encode(manifest)
    with zstd.open(path, "wb") as file, tarfile.open(fileobj=file, mode="w|", format=form) as tar:
        for info, data in (member(MANIFEST, content), *members):
            tar.addfile(info, io.BytesIO(data) if info.size else None)
    return path


def good_members() -> list[Member]:
    return [member(place, content) for place, content in CONTENTS.items()]


def unpacked(path: Path, folder: Path) -> None:
    with opened_pack(path) as reader:
        unpack_archive(reader, folder, lambda n: None)


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    done = list[int]()
    source = tmp_path / "run.db"
    source.write_bytes(CONTENTS["run/run.db"])
    write_archive(tmp_path / "x", GOOD, CONTENTS | {"run/run.db": source}, done.append)
    assert sum(done) == GOOD.bytes == 2801
    unpacked(tmp_path / "x", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run.db", "x"]
    for place, content in CONTENTS.items():
        assert (tmp_path / "out" / place).read_bytes() == content
    with opened_pack(tmp_path / "x") as reader:
        assert reader.manifest == GOOD
    with pytest.raises(PackError, match="must be a new folder, got one that exists"):
        unpacked(tmp_path / "x", tmp_path / "out")
    with pytest.raises(PackError, match="must be a new file, got one that exists"):
        write_archive(tmp_path / "x", GOOD, CONTENTS, done.append)


def test_a_file_that_changes_while_it_is_packed(tmp_path: Path) -> None:
    for content in (CONTENTS["run/run.db"] + b"more", b"rowS" * 700):
        with pytest.raises(PackError, match=r"run/run.db: must not change while it is packed"):
            write_archive(tmp_path / "x", GOOD, CONTENTS | {"run/run.db": content}, lambda n: None)
    assert not list(tmp_path.iterdir())


BAD_MEMBERS = {
    "a link": (member("run/run.db", b"", tarfile.SYMTYPE), "must have regular files only"),
    "a hard link": (member("run/run.db", b"", tarfile.LNKTYPE), "must have regular files only"),
    "a device": (member("run/run.db", b"", tarfile.CHRTYPE), "must have regular files only"),
    "a folder": (member("run", b"", tarfile.DIRTYPE), "must have regular files only"),
    "another file": (member("run/evil", b"x"), r"must have the files of its pack.json.*run/evil"),
    "a file outside": (member("../evil", b"x"), r"must have the files of its pack.json.*evil"),
    "a file twice": (member("README.md", b"x"), r"must have the files of its pack.json.*README"),
    "another size": (member("README.md", b"xy"), r"must have the files of its pack.json.*2 bytes"),
}


@pytest.mark.parametrize("case", BAD_MEMBERS)
def test_members_that_the_manifest_does_not_have(case: str, tmp_path: Path) -> None:
    bad, problem = BAD_MEMBERS[case]
    members = good_members()[: 2 if case == "another size" else 3]
    path = packed(tmp_path / "x", GOOD, *members, bad)
    with pytest.raises(PackError, match=problem):
        unpacked(path, tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_a_long_name_of_another_format_is_refused(tmp_path: Path) -> None:
    long = member("run/" + "x" * 200, b"x")
    path = packed(tmp_path / "x", GOOD, long, form=tarfile.PAX_FORMAT)
    with pytest.raises(PackError, match="must have regular files only, got"):
        unpacked(path, tmp_path / "out")


def test_another_content_is_refused(tmp_path: Path) -> None:
    members = [member(place, content.swapcase()) for place, content in CONTENTS.items()]
    with pytest.raises(PackError, match=r"run/run.db must have the hash of pack.json"):
        unpacked(packed(tmp_path / "x", GOOD, *members), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pack_that_is_cut_or_lacks_a_file(tmp_path: Path) -> None:
    path = packed(tmp_path / "x", GOOD, *good_members())
    whole = path.read_bytes()
    for length in range(4, len(whole), 16):
        path.write_bytes(whole[:length])
        with pytest.raises(PackError, match=r"must be a whole|must be a tar"):
            unpacked(path, tmp_path / "out")
    path = packed(tmp_path / "y", GOOD, *good_members()[:2])
    with pytest.raises(PackError, match=r"got none at 'README.md'; copy the pack again"):
        unpacked(path, tmp_path / "out")
    for damaged in (whole[:60] + b"\0" * 8 + whole[68:], whole[:4] + b"\xff" * 20):
        path.write_bytes(damaged)
        with pytest.raises(PackError):
            unpacked(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_pack(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(PackError, match="must be a pack, got: No such file"):
        unpacked(path, tmp_path / "out")
    path.write_bytes(b"PK\3\4 a zip")
    with pytest.raises(PackError, match="must be a pack, got another file"):
        unpacked(path, tmp_path / "out")
    with zstd.open(path, "wb") as file, tarfile.open(fileobj=file, mode="w|") as tar:
        tar.addfile(member("a", b"b")[0], io.BytesIO(b"b"))
    with pytest.raises(PackError, match=r"which begins with pack.json, got another archive"):
        unpacked(path, tmp_path / "out")


def test_a_window_that_needs_much_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {parameter.window_log: 28, parameter.compression_level: 1}
    with zstd.open(path, "wb", options=options) as file:
        for _ in range(129):
            file.write(bytes(1 << 20))
    with pytest.raises(PackError, match="must be a whole Zstandard file"):
        unpacked(path, tmp_path / "out")


BAD_MANIFESTS: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"[", "must be the manifest of a pack"),
    "no format": (b"{}", "must be the manifest of a pack"),
    "of later": (b'{"format": 2}', "must be a pack of format 1, got format 2"),
    "no files": (b'{"format": 1}', "must be the manifest of a pack"),
    "twice": (
        msgspec.json.encode(manifest_of(of("README.md", b""), of("README.md", b""))),
        r"must have each file once, got 'README.md' twice",
    ),
    "negative": (
        msgspec.json.encode(manifest_of(PackedFile(place="README.md", bytes=-1, sha256="0"))),
        "must have sizes of at least 0",
    ),
    "outside": (
        msgspec.json.encode(manifest_of(of("work/../../x", b""))),
        "a place must be a path in",
    ),
    "a path of Python outside": (
        msgspec.json.encode(msgspec.structs.replace(GOOD, paths=["/tmp"])),
        "a place must be a path in",
    ),
}


@pytest.mark.parametrize("case", BAD_MANIFESTS)
def test_a_bad_manifest(case: str, tmp_path: Path) -> None:
    content, problem = BAD_MANIFESTS[case]
    with pytest.raises(PackError, match=problem):
        unpacked(packed(tmp_path / "x", content), tmp_path / "out")


@pytest.mark.parametrize(
    "place",
    [
        *("", "/run/x", "run//x", "run/./x", "run/../x", "..", "run/a\nb", "run/a\\b", "run/C:x"),
        *("elsewhere/x", "run/" + "x" * 252, "run/\udcff", "report.html/x"),
    ],
)
def test_places_outside_of_a_pack(place: str) -> None:
    with pytest.raises(PackError, match=r"x: a place must be a path in"):
        check_place(place, "x")


def test_a_file_inside_another_file_is_refused(tmp_path: Path) -> None:
    members = [member("run/a", b"x"), member("run/a/b", b"y")]
    manifest = manifest_of(of("run/a", b"x"), of("run/a/b", b"y"))
    with pytest.raises(PackError, match="run/a/b: must be a file of its own"):
        unpacked(packed(tmp_path / "x", manifest, *members), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert sha256_of(b"x") == (1, hashlib.sha256(b"x").hexdigest())
