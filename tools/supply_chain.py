"""Locks, licences, vulnerabilities, SBOM and signatures of a release.

    python tools/supply_chain.py lock                     write locks/, one file for each extra
    python tools/supply_chain.py licences                 check the form of the locks, and licences
    python tools/supply_chain.py audit                    look for known vulnerabilities
    python tools/supply_chain.py release KEY [FOLDER]     locks, SBOM, SHA256SUMS and its signature
    python tools/supply_chain.py verify FOLDER [SIGNERS]  check signature and files

`lock` and `audit` ask a package index. They and `release` run uv, pip-audit and cyclonedx-py, which
are on the PATH when the recipes of the Justfile run this file (`tools/setup.sh supply`). Each
prints one line for a problem and exits with 1; `audit` exits with 2 if it could not check all.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
LOCKS = ROOT / "locks"
SIGNERS = ROOT / "tools" / "release_signers"

BASE = "base"
"""The lock of a device: what the wheel needs without extras."""

NOT_RELEASED = frozenset({"dev"})
"""Extras without a lock: all others at once."""

OLDEST_PYTHON = "3.10"

INDEX = "https://pypi.org/simple"
"""Named in the SBOM, whatever mirror the locks were made with."""

NAMESPACE = "fairbed-release"
"""Of the signatures, so that a signature for another purpose is no signature of a release."""

SUMS = "SHA256SUMS"

SPECIAL_FILES = frozenset({SUMS, f"{SUMS}.sig"})

ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause"),
        *("BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Zlib"),
    }
)
"""Licences, as SPDX names them, that permit use and redistribution beside Apache-2.0."""

SPELLINGS: Mapping[str, str] = {
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
"""Other names of licences, in classifiers and in the older field `License`."""

REVIEWED: Mapping[str, str] = {
    "async-timeout": "Apache-2.0",
    "colorama": "BSD-3-Clause",
    "coloredlogs": "MIT",
    "exceptiongroup": "MIT AND PSF-2.0",
    "humanfriendly": "MIT",
    "narwhals": "MIT",
    "pyreadline3": "BSD-3-Clause",
    "pytz": "MIT",
    "tomli": "MIT",
    "triton": "MIT",
}
"""Licences of packages that only another Python or system installs, read in their metadata."""

OF_NVIDIA = re.compile(r"(nvidia|cuda)-[a-z0-9-]+")
"""CUDA for torch on Linux, under NVIDIA's own licences: only the lock `torch` may name it."""

OF_ONE_EXTRA: Mapping[str, Mapping[str, str]] = {
    "cluster": {"certifi": "Mozilla Public License 2.0 (MPL 2.0)"},
}
"""Packages that only the lock of this extra may name, and their licence. certifi: the certificates
of requests, which ray needs; its licence covers its own files, and Fairbed ships none of them."""

Block = str
"""One pin of a lock: a line `name==version ; marker` and one line for each hash."""


class Problem(Exception):
    """A step did not succeed; the message is the line for the user."""


def main(arguments: list[str]) -> int:
    """Run one command; return the exit status."""
    match arguments:
        case ["lock"]:
            return _report(lock())
        case ["licences"]:
            return _report(chain(lock_problems(LOCKS), licence_problems(LOCKS)))
        case ["audit"]:
            return audit()
        case ["release", key, *rest] if len(rest) <= 1:
            return _report(release(Path(key), Path(*rest or ["dist"])))
        case ["verify", folder, *rest] if len(rest) <= 1:
            return _report(verify(Path(folder), Path(*rest or [SIGNERS])))
    print(__doc__, file=sys.stderr)
    return 2


def _report(problems: Iterable[str]) -> int:
    status = 0
    try:
        for problem in problems:
            print(problem, file=sys.stderr)
            status = 1
    except Problem as exc:
        print(exc, file=sys.stderr)
        status = 1
    return status


def released_extras() -> list[str]:
    """Return the extras of `pyproject.toml` that have a lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return sorted(project["optional-dependencies"].keys() - NOT_RELEASED)


# Locks


def lock() -> Iterator[str]:
    """Write all locks, with one version of a package for all extras.

    torch is resolved from its metadata: its gigabytes are not downloaded.
    """
    with tempfile.TemporaryDirectory() as scratch:
        extras = released_extras()
        given = [ROOT / "constraints.txt"]
        together = _compile(extras, given)
        given.append(Path(scratch, "together.txt"))
        given[-1].write_text("\n".join(together) + "\n", encoding="utf-8")
        base = _compile([], given)
        of_extra = {name: _compile([name], given) for name in extras}
    LOCKS.mkdir(exist_ok=True)
    for old in LOCKS.glob("*.txt"):
        old.unlink()
    _write_lock(BASE, "fairbed without extras", base)
    for name, blocks in of_extra.items():
        added = [block for block in blocks if block not in base]
        _write_lock(name, f"what fairbed[{name}] adds", [f"-r {BASE}.txt", *added])
    yield from lock_problems(LOCKS)


def _compile(extras: Iterable[str], constraints: Iterable[Path]) -> list[Block]:
    command = ["uv", "pip", "compile", "pyproject.toml", "--universal", "--generate-hashes"]
    command += ["--python-version", OLDEST_PYTHON, "--prerelease", "disallow"]
    command += ["--no-annotate", "--no-header", "--no-emit-index-url", "--no-emit-find-links"]
    command += chain.from_iterable(("--extra", name) for name in extras)
    command += chain.from_iterable(("-c", str(path)) for path in constraints)
    return blocks_of(_output(command))


def _write_lock(name: str, title: str, lines: list[str]) -> None:
    head = f"# Versions and SHA-256 hashes of {title}, by `./just lock`.\n"
    (LOCKS / f"{name}.txt").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def blocks_of(text: str) -> list[Block]:
    """Return the pins of a lock with their hashes, without comments and options."""
    found = re.findall(r"^[A-Za-z0-9][^\n]*(?:\n[ \t]+[^\n]*)*", text, re.MULTILINE)
    return [block.rstrip() for block in found]


def pin_of(block: Block) -> Requirement:
    """Return name, version and marker of a pin."""
    return Requirement(block.partition("\n")[0].rstrip("\\ "))


def read_lock(path: Path) -> list[Block]:
    """Return the pins of a lock, with those of the locks that it includes."""
    text = path.read_text(encoding="utf-8")
    included = re.findall(r"^-r (\S+)$", text, re.MULTILINE)
    return [*chain(*(read_lock(path.with_name(name)) for name in included)), *blocks_of(text)]


def all_blocks(folder: Path) -> list[Block]:
    """Return every pin of every lock once, in alphabetical order."""
    return sorted(
        {
            block
            for path in folder.glob("*.txt")
            for block in blocks_of(path.read_text(encoding="utf-8"))
        }
    )


def version_of(pin: Requirement) -> str:
    """Return the version of a pin."""
    return str(pin.specifier).removeprefix("==")


def lock_problems(folder: Path) -> Iterator[str]:
    """Yield lines that a lock must not have: other options, addresses, versions without a hash."""
    for path in sorted(folder.glob("*.txt")):
        where = f"{folder.name}/{path.name}"
        text = path.read_text(encoding="utf-8")
        for line in text.splitlines():
            is_known = re.fullmatch(r"#.*|-r base\.txt|    --hash=sha256:[0-9a-f]{64}( \\)?", line)
            if not is_known and not re.fullmatch(r"[a-z0-9].*", line):
                yield f"{where}: must hold pins and SHA-256 hashes only, got {line.strip()!r}"
        for block in blocks_of(text):
            first = block.partition("\n")[0]
            if re.search(r"://| @ ", first) or not re.search(r"==[0-9][0-9.a-z]*( ;| \\|$)", first):
                yield f"{where}: must name a version of the package index, got {first!r}"
            if "--hash=" not in block:
                yield f"{where}: must have a hash for each pin, got none for {first!r}"


# Licences


def licence_problems(folder: Path) -> Iterator[str]:
    """Yield packages of the locks whose licence is unknown or not allowed."""
    for path in sorted(folder.glob("*.txt")):
        for name in sorted(
            {pin_of(block).name for block in blocks_of(path.read_text(encoding="utf-8"))}
        ):
            if path.stem == "torch" and OF_NVIDIA.fullmatch(name):
                continue
            licence = licence_of(name)
            if licence is None:
                yield (
                    f"{folder.name}/{path.name}: the licence of {name} must be known; install the "
                    "package, or read its licence and add it to REVIEWED in tools/supply_chain.py"
                )
            elif not is_allowed(licence) and licence != OF_ONE_EXTRA.get(path.stem, {}).get(name):
                yield (
                    f"{folder.name}/{path.name}: {name} must have one of the licences ALLOWED in "
                    f"tools/supply_chain.py, got {licence!r}; use another one, or allow it there"
                )


def licence_of(name: str) -> str | None:
    """Return the declared licence of an installed or reviewed package."""
    try:
        return declared_licence(metadata(name))
    except PackageNotFoundError:
        return REVIEWED.get(name)


def declared_licence(of: PackageMetadata) -> str:
    """Return the licence in a package's metadata as an SPDX expression, if it can be read so.

    Classifiers come before the old field `License`, which may hold the whole text of a licence.
    """
    if expression := of.get("License-Expression"):
        return str(expression)
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in of.get_all("Classifier") or []
        if text.startswith("License ::")
    ]
    names = classifiers or [(of.get("License") or "").partition("\n")[0]]
    return " AND ".join(SPELLINGS.get(name, name) for name in names)


def is_allowed(expression: str) -> bool:
    """Return whether a way to fulfil an SPDX expression without parentheses is allowed."""
    return any(
        all(part.strip() in ALLOWED for part in re.split(r"\bAND\b", way))
        for way in re.split(r"\bOR\b", expression)
    )


# Vulnerabilities


def audit() -> int:
    """Look every locked version up in a database of vulnerabilities; return the exit status."""
    reports: list[Any] = []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for number, pins in enumerate(one_version_each(all_blocks(LOCKS))):
                path = Path(scratch, f"{number}.txt")
                path.write_text(
                    "".join(f"{pin.name}=={version_of(pin)}\n" for pin in pins), encoding="utf-8"
                )
                reports += json.loads(_pip_audit(path))["dependencies"]
    except (Problem, ValueError, KeyError) as exc:
        print(
            f"audit: nothing was checked: {exc}; run this where pypi.org or osv.dev answers",
            file=sys.stderr,
        )
        return 2
    lines, status = audit_result(reports)
    print("\n".join(lines), file=sys.stderr if status else sys.stdout)
    return status


def _pip_audit(path: Path) -> str:
    """Return pip-audit's report: it exits with 1 for a finding as for a failure."""
    command = ["pip-audit", "--disable-pip", "--no-deps", "--format", "json", "--desc", "off"]
    command += ["--progress-spinner", "off", "--requirement", str(path)]
    done = _run(command)
    if not done.stdout.strip():
        raise Problem(_last_line(done.stderr) or f"status {done.returncode}")
    return done.stdout


def one_version_each(blocks: Iterable[Block]) -> list[list[Requirement]]:
    """Split pins into lists with at most one version of a package, as pip-audit demands.

    Markers are left out: the versions for other Pythons are audited, too.
    """
    versions: dict[str, dict[str, Requirement]] = {}
    for block in blocks:
        pin = pin_of(block)
        versions.setdefault(pin.name, {})[version_of(pin)] = pin
    columns = zip_longest(*(list(pins.values()) for pins in versions.values()))
    return [[pin for pin in column if pin is not None] for column in columns]


def audit_result(reports: Iterable[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Return lines for the user and the exit status: 1 for a finding, 2 if not all was checked."""
    reports = list(reports)
    skipped = [report["name"] for report in reports if "skip_reason" in report]
    lines = [
        f"audit: {report['name']} {report['version']} has {', '.join(ids)}; "
        f"fixed in {', '.join(vulnerability['fix_versions']) or 'no version'}"
        for report in reports
        for vulnerability in report.get("vulns", ())
        for ids in [[vulnerability["id"], *vulnerability.get("aliases", ())]]
    ]
    status = 1 if lines else 0
    if skipped:
        names = ", ".join(sorted(set(skipped))[:3])
        lines.append(
            f"audit: {len(skipped)} of {len(reports)} versions were not checked ({names}, ...); "
            "pip's index must serve vulnerabilities: run this where pypi.org or osv.dev answers"
        )
        status = status or 2
    return lines or [f"audit: {len(reports)} versions, no known vulnerability"], status


# Release


def release(key: Path, folder: Path) -> Iterator[str]:
    """Put locks, SBOM, checksums and their signature beside the built sdist and wheel."""
    if not key.is_file():
        raise Problem(
            f"{key}: must be an SSH key to sign with, got no file; make one: "
            f"ssh-keygen -t ed25519 -f {key}"
        )
    built = [*folder.glob("fairbed-*.whl"), *folder.glob("fairbed-*.tar.gz")]
    if len(built) != 2:
        raise Problem(f"{folder}: must hold one wheel and one sdist, got {len(built)} files")
    problems = [*lock_problems(LOCKS), *licence_problems(LOCKS)]
    if problems:
        yield from problems
        return
    (folder / "locks").mkdir(exist_ok=True)
    for old in (folder / "locks").iterdir():
        old.unlink()
    for path in LOCKS.glob("*.txt"):
        shutil.copy(path, folder / "locks")
    sbom = folder / f"{built[0].name.removesuffix('-py3-none-any.whl')}.cdx.json"
    for old in folder.glob("fairbed-*.cdx.json"):
        old.unlink()
    sbom.write_text(_sbom(all_blocks(LOCKS)), encoding="utf-8")
    yield from (
        f"{sbom}: {problem}" for problem in sbom_problems(sbom.read_text(encoding="utf-8"), LOCKS)
    )
    sign(key, folder)
    print(f"{folder / SUMS}: {len(_files(folder))} files, signed with {key}")


def _sbom(blocks: Iterable[Block]) -> str:
    """Return the bill of materials of all locks in CycloneDX's JSON."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "requirements.txt")
        path.write_text("\n".join(blocks) + "\n", encoding="utf-8")
        command = ["cyclonedx-py", "requirements", str(path), "--pyproject", "pyproject.toml"]
        command += ["--index-url", INDEX, "--output-reproducible", "--output-format", "JSON"]
        return _output(command)


def sbom_problems(text: str, folder: Path) -> Iterator[str]:
    """Yield the differences between a bill of materials and the locks, and foreign indexes."""
    bom = json.loads(text)
    listed = {(canonicalize_name(c["name"]), c["version"]) for c in bom["components"]}
    pins = [pin_of(block) for block in all_blocks(folder)]
    locked = {(canonicalize_name(pin.name), version_of(pin)) for pin in pins}
    for name, version in sorted(listed ^ locked):
        where = "the locks" if (name, version) in locked else "the bill of materials"
        yield f"{name} {version}: is only in {where}"
    for component in bom["components"]:
        for reference in component.get("externalReferences", ()):
            if not reference["url"].startswith(INDEX):
                yield f"{component['name']}: must come from {INDEX}, got {reference['url']}"


def sign(key: Path, folder: Path) -> None:
    """Write the checksums of a release's files, and the signature of the list.

    Raises:
        Problem: ssh-keygen failed, or is missing.
    """
    sums = folder / SUMS
    sums.write_text(
        "".join(f"{_digest(folder / name)}  {name}\n" for name in _files(folder)), encoding="utf-8"
    )
    Path(f"{sums}.sig").unlink(missing_ok=True)
    _output(["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums)])


def verify(folder: Path, signers: Path = SIGNERS) -> Iterator[str]:
    """Yield what is wrong with a release: its signature first, then each file.

    Raises:
        Problem: There is no key or no signature, or the signature is not by one of the keys.
    """
    if not signers.is_file() or not re.search(
        r"^[^#\s]", signers.read_text(encoding="utf-8"), re.MULTILINE
    ):
        raise Problem(
            f"{signers}: must hold the key of a maintainer, got none; name a file with it: "
            f"./just verify {folder} SIGNERS"
        )
    sums, signature = folder / SUMS, folder / f"{SUMS}.sig"
    if not sums.is_file() or not signature.is_file():
        raise Problem(f"{folder}: must hold {SUMS} and {SUMS}.sig; they are part of a release")
    signer = _signer(signers, signature)
    listed = dict(
        reversed(line.split("  ", 1)) for line in sums.read_text(encoding="utf-8").splitlines()
    )
    present = _files(folder)
    problems = []
    for name in sorted(listed.keys() | set(present)):
        if name not in listed:
            problems.append(f"{folder / name}: is not part of the signed release; remove it")
        elif name not in present:
            problems.append(f"{folder / name}: is missing")
        elif _digest(folder / name) != listed[name]:
            problems.append(f"{folder / name}: is not the file that was signed; download it again")
    yield from problems
    if not problems:
        print(f"{sums}: signed by {signer}, {len(listed)} files")


def _signer(signers: Path, signature: Path) -> str:
    """Return the name beside the key that made a signature."""
    command = ["ssh-keygen", "-Y", "find-principals", "-f", str(signers), "-s", str(signature)]
    found = _run(command)
    name = found.stdout.split("\n")[0]
    with signature.with_suffix("").open("rb") as signed:
        command = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", name or "unknown"]
        done = _run([*command, "-n", NAMESPACE, "-s", str(signature)], stdin=signed)
    if found.returncode or done.returncode:
        reason = _last_line(found.stderr + done.stdout + done.stderr)
        raise Problem(f"{signature}: must be by a key of {signers}, got: {reason}")
    return name


def _files(folder: Path) -> list[str]:
    """Return the names of a release's files, without checksums and signature."""
    paths = (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    names = (path.relative_to(folder).as_posix() for path in paths)
    return sorted(name for name in names if name not in SPECIAL_FILES)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Commands


def _output(command: list[str]) -> str:
    done = _run(command)
    if done.returncode:
        reason = _last_line(done.stderr + done.stdout)
        raise Problem(f"{command[0]}: must succeed, got status {done.returncode}: {reason}")
    return done.stdout


def _run(command: list[str], stdin: Any = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    program = shutil.which(command[0])
    if program is None:
        raise Problem(f"{command[0]}: must be on the PATH; the recipes in Justfile install it")
    return subprocess.run(
        [program, *command[1:]],
        cwd=ROOT,
        stdin=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
