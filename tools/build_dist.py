"""Build the sdist and the wheel into dist/ and check them: python tools/build_dist.py [FOLDER].

The wheel is built from this tree and again from the unpacked sdist; both must have the same bytes.
Prints names and sizes. Exits with 1 and one line for each problem.
"""

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

from markdown_it import MarkdownIt
from packaging.metadata import Metadata

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent

PACKAGE = "fairbed"
FOLDERS = ("wire", "device_agent", "coordinator", "profiles", "testbed", "examples")
"""Folders of the checkout that are part of the wheel, below `fairbed/`."""

SUFFIXES = {
    ".py",
    ".sh",
    ".typed",
    ".toml",
    ".task",
    ".tcss",
    ".html",
    ".css",
    ".ipynb",
    ".js",
    ".json",
    ".yml",
    ".txt",
}
"""File types of the package; any other file is there by mistake."""

LINK, FOLDER = 0o120000, 0o040000
"""Types of a zip entry, in the upper half of its attributes."""

STRAY = re.compile(r"(^|/)(\.venv[^/]*|__pycache__|\.[a-z]+_cache|runs|dist|data)/|\.(pyc|db|npz)$")
"""Caches, environments, runs and data, by name in the sdist without its top folder."""

KEPT = ("tests/", "docs/", "benchmarks/data/")
"""Folders of the sdist whose own files may have such names."""


class BuildError(Exception):
    """A build did not finish."""


def main(arguments: list[str]) -> int:
    """Build and check; return 1 if there is a problem."""
    folder = Path(arguments[0]) if arguments else ROOT / "dist"
    try:
        sdist, wheel = build(ROOT, folder, "sdist"), build(ROOT, folder, "wheel")
        problems = [*wheel_problems(wheel, ROOT), *sdist_problems(sdist), *rebuilt(sdist, wheel)]
    except BuildError as exc:
        print(exc, file=sys.stderr)
        return 1
    for path, count in ((sdist, len(_sdist_names(sdist))), (wheel, len(_wheel_names(wheel)))):
        print(f"{path}: {count} files, {path.stat().st_size / 1e6:.2f} MB")
    for problem in problems:
        print(f"dist: {problem}", file=sys.stderr)
    return 1 if problems else 0


def build(source: Path, folder: Path, target: str) -> Path:
    """Build one target of the project in `source`; return the file in `folder`.

    Raises:
        BuildError: hatchling failed.
    """
    pattern = "*.whl" if target == "wheel" else "*.tar.gz"
    for old in folder.glob(f"{PACKAGE}-{pattern}"):
        old.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "--target", target]
    done = subprocess.run(
        [*command, "--directory", folder.absolute()],
        cwd=source,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        raise BuildError(f"dist: the {target} must be built, got:\n{done.stderr}{done.stdout}")
    (path,) = folder.glob(f"{PACKAGE}-{pattern}")
    return path


def rebuilt(sdist: Path, wheel: Path) -> Iterator[str]:
    """Yield the difference between the wheel and one that is built from the sdist."""
    with tempfile.TemporaryDirectory() as scratch:
        source = unpack(sdist, Path(scratch))
        other = build(source, Path(scratch, "dist"), "wheel")
        names, others = set(_wheel_names(wheel)), set(_wheel_names(other))
        for name in sorted(names ^ others):
            where = "the tree" if name in names else "the sdist"
            yield f"{name}: is only in the wheel that is built from {where}"
        if names == others and _digest(wheel) != _digest(other):
            yield f"{wheel.name}: has other bytes when it is built from the sdist"


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack a source distribution; return its top folder."""
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.10.12, 3.11.4 and later
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder / sdist.name.removesuffix(".tar.gz")


def wheel_problems(wheel: Path, root: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel of the checkout `root`."""
    with zipfile.ZipFile(wheel) as archive:
        entries = archive.infolist()
        texts = {entry.filename: archive.read(entry) for entry in entries}
    info = next((n.partition("/")[0] for n in texts if ".dist-info/" in n), "no .dist-info")
    for entry in entries:
        name = entry.filename
        yield from _name_problems(name)
        if entry.external_attr >> 16 & 0o170000 in (LINK, FOLDER):
            yield f"{name}: must be a regular file"
        if not name.startswith((f"{PACKAGE}/", f"{info}/")):
            yield f"{name}: must be in {PACKAGE}/"
        elif name.startswith(f"{PACKAGE}/") and PurePosixPath(name).suffix not in SUFFIXES:
            yield f"{name}: is no file of the package"
        if str(root).encode() in texts[name] and len(root.parts) > 2:
            yield f"{name}: names a path of this machine, {root}"
    for name in sorted(_expected(root) - texts.keys()):
        yield f"{name}: is missing in the wheel"
    for name in ("licenses/LICENSE", "licenses/NOTICE", "entry_points.txt"):
        if f"{info}/{name}" not in texts:
            yield f"{info}/{name}: is missing in the wheel"
    yield from metadata_problems(texts.get(f"{info}/METADATA", b""), root)


def metadata_problems(text: bytes, root: Path) -> Iterator[str]:
    """Yield what an index or an installer would refuse in the metadata of a distribution."""
    try:
        metadata = Metadata.from_email(text, validate=True)
    except Exception as exc:  # an ExceptionGroup, of which Python 3.10 has none
        yield from (f"METADATA: {error}" for error in getattr(exc, "exceptions", [exc]))
        return
    for field in ("summary", "author", "license_expression", "requires_python", "keywords"):
        if not getattr(metadata, field):
            yield f"METADATA: {field} is missing"
    if BytesParser().parsebytes(text)["Description-Content-Type"] != "text/markdown":
        yield "METADATA: the description must be Markdown"
    if metadata.description != (root / "README.md").read_text(encoding="utf-8"):
        yield "METADATA: the description must be README.md"
    if "<h1>" not in MarkdownIt("commonmark").render(metadata.description or ""):
        yield "METADATA: the description must have a title"
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    if str(metadata.version) != version:
        yield f"METADATA: the version must be {version}, got {metadata.version}"


def sdist_problems(sdist: Path) -> Iterator[str]:
    """Yield what is wrong with a source distribution."""
    top = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    for member in members:
        name = member.name.removeprefix(f"{top}/")
        yield from _name_problems(name)
        if name == member.name:
            yield f"{name}: must be in {top}/"
        if not member.isfile():
            yield f"{name}: must be a regular file"
        if STRAY.search(name) and not name.startswith(KEPT):
            yield f"{name}: is no file of the project"
    names = {member.name.removeprefix(f"{top}/") for member in members}
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", readme):
        if link.rstrip("/") not in names | folders:
            yield f"README.md: links to {link}, which is not in the sdist"


def _name_problems(name: str) -> Iterator[str]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        yield f"{name}: must be relative and inside the archive"


def _expected(root: Path) -> set[str]:
    """Return the names in the wheel of all files of the package."""
    paths = (path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file())
    own = {f"{PACKAGE}/{name}" for name in ("__init__.py", "py.typed")}
    return own | {
        f"{PACKAGE}/{path.relative_to(root).as_posix()}"
        for path in paths
        if "__pycache__" not in path.parts
    }


def _wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _sdist_names(sdist: Path) -> list[str]:
    with tarfile.open(sdist) as archive:
        return archive.getnames()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
