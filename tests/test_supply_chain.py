"""Locks, licences, audit, bill of materials and signature of a release."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution
from pathlib import Path
from typing import cast

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import supply_chain
from tools.supply_chain import (
    BASE,
    LOCKS,
    SUMS,
    Problem,
    all_blocks,
    audit,
    audit_result,
    declared_licence,
    is_allowed,
    licence_problems,
    lock_problems,
    one_version_each,
    pin_of,
    read_lock,
    released_extras,
    sbom_problems,
    sign,
    verify,
    version_of,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SYSTEMS = (
    ("linux", "Linux", "x86_64"),
    ("linux", "Linux", "aarch64"),
    ("darwin", "Darwin", "arm64"),
)

HASH = "0" * 64

needs_ssh_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed"
)


def environments() -> Iterator[dict[str, str]]:
    """Yield the markers of the Pythons and systems that the locks are for."""
    for python in PYTHONS:
        for platform, system, machine in SYSTEMS:
            yield {
                **cast("dict[str, str]", default_environment()),
                "python_version": python,
                "python_full_version": f"{python}.4",
                "sys_platform": platform,
                "platform_system": system,
                "platform_machine": machine,
                "extra": "",
            }


def requirements(extra: str) -> list[Requirement]:
    """Return what `pyproject.toml` names for an extra, with the extras that it includes."""
    found = [Requirement(text) for text in PROJECT["dependencies"]]
    for text in PROJECT["optional-dependencies"].get(extra, ()):
        own = Requirement(text)
        if own.name == PROJECT["name"]:
            found += [r for name in own.extras for r in requirements(name)]
        else:
            found.append(own)
    return found


def pins(extra: str, environment: dict[str, str]) -> dict[str, Requirement]:
    """Return what pip would install of a lock."""
    found = [pin_of(block) for block in read_lock(LOCKS / f"{extra}.txt")]
    valid = [pin for pin in found if not pin.marker or pin.marker.evaluate(environment)]
    assert len({(pin.name, version_of(pin)) for pin in valid}) == len({p.name for p in valid})
    return {canonicalize_name(pin.name): pin for pin in valid}


def test_each_released_extra_has_a_lock() -> None:
    locks = {path.stem for path in LOCKS.glob("*.txt")}
    assert locks == {BASE, *released_extras()}, "type: ./just lock"


@pytest.mark.parametrize("extra", [BASE, *released_extras()])
def test_a_lock_has_one_version_for_each_python_and_system(extra: str) -> None:
    constraints = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    for environment in environments():
        locked = pins(extra, environment)
        valid = [r for r in requirements(extra) if not r.marker or r.marker.evaluate(environment)]
        for requirement in valid:
            pin = locked[canonicalize_name(requirement.name)]
            assert version_of(pin) in requirement.specifier, "type: ./just lock"
        for constraint in constraints:
            if not constraint.marker or constraint.marker.evaluate(environment):
                of_lock = locked.get(canonicalize_name(constraint.name))
                assert of_lock is None or of_lock.specifier == constraint.specifier, "./just lock"


@pytest.mark.parametrize("extra", [BASE, *released_extras()])
def test_a_lock_holds_what_its_packages_need(extra: str) -> None:
    environment = cast("dict[str, str]", default_environment())
    locked = pins(extra, {**environment, "extra": ""})
    for name, pin in locked.items():
        try:
            needs = [Requirement(text) for text in distribution(name).requires or ()]
        except PackageNotFoundError:
            continue
        for need in needs:
            extras = {"", *pin.extras}
            if any(not need.marker or need.marker.evaluate({"extra": e}) for e in extras):
                assert canonicalize_name(need.name) in locked, f"{name} needs {need}"


def test_the_locks_hold_versions_and_hashes_only() -> None:
    assert not list(lock_problems(LOCKS))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--index-url https://mirror.example/simple", "must hold pins and SHA-256 hashes only"),
        ("--extra-index-url https://mirror.example", "must hold pins and SHA-256 hashes only"),
        ("--find-links wheels", "must hold pins and SHA-256 hashes only"),
        (f"a @ https://mirror.example/a.whl \\\n    --hash=sha256:{HASH}", "of the package index"),
        (f"torch==2.13.0+cpu \\\n    --hash=sha256:{HASH}", "must name a version"),
        (f"a>=1 \\\n    --hash=sha256:{HASH}", "must name a version"),
        ("a==1", "must have a hash for each pin"),
        ("a==1 \\\n    --hash=md5:00", "must hold pins and SHA-256 hashes only"),
    ],
)
def test_a_line_that_does_not_belong_into_a_lock_is_found(
    tmp_path: Path, line: str, problem: str
) -> None:
    (tmp_path / "base.txt").write_text(f"# Versions\nb==1 \\\n    --hash=sha256:{HASH}\n{line}\n")
    found = list(lock_problems(tmp_path))
    assert found
    assert all(problem in text for text in found)


def test_every_locked_package_has_an_allowed_licence() -> None:
    assert not list(licence_problems(LOCKS))


def test_the_licence_of_certificates_is_allowed_in_one_lock_only(tmp_path: Path) -> None:
    pytest.importorskip("certifi")
    for extra in ("cluster", "web"):
        (tmp_path / f"{extra}.txt").write_text("certifi==1\n")
    [line] = licence_problems(tmp_path)
    assert line.startswith(f"{tmp_path.name}/web.txt: certifi must have one of the licences")


@pytest.mark.parametrize(
    ("fields", "licence", "allowed"),
    [
        ({"License-Expression": "Apache-2.0 AND MIT"}, "Apache-2.0 AND MIT", True),
        ({"License-Expression": "MIT AND GPL-3.0-only"}, "MIT AND GPL-3.0-only", False),
        ({"License-Expression": "EPL-2.0 OR BSD-3-Clause"}, "EPL-2.0 OR BSD-3-Clause", True),
        ({"License-Expression": "(MIT OR GPL-3.0-only)"}, "(MIT OR GPL-3.0-only)", False),
        ({"Classifier": "License :: OSI Approved :: BSD License"}, "BSD-3-Clause", True),
        ({"Classifier": "License :: Other/Proprietary License", "License": "MIT"}, None, False),
        ({"License": "MIT License\nCopyright"}, "MIT", True),
        ({"License": "AGPL"}, "AGPL", False),
        ({"Name": "a"}, "", False),
    ],
)
def test_a_licence_is_read_from_metadata(
    fields: dict[str, str], licence: str | None, allowed: bool
) -> None:
    message = Message()
    for name, value in fields.items():
        message[name] = value.replace("\n", "\n  ")
    declared = declared_licence(cast("PackageMetadata", message))
    assert declared == (licence if licence is not None else declared)
    assert is_allowed(declared) is allowed


def test_an_unknown_package_and_a_driver_beside_torch_are_found(tmp_path: Path) -> None:
    (tmp_path / "torch.txt").write_text("nvidia-nvtx==1\n")
    (tmp_path / "web.txt").write_text("nvidia-nvtx==1\nno-such-package==1\n")
    found = [line.partition(" must")[0] for line in licence_problems(tmp_path)]
    assert found == [
        f"{tmp_path.name}/web.txt: the licence of {name}"
        for name in ("no-such-package", "nvidia-nvtx")
    ]


def test_the_audit_gets_every_version_of_a_package() -> None:
    blocks = ["a==1 ; python_version < '3.11' \\\n    --hash=x", "a==2", "b[c]==3"]
    lists = [[(pin.name, version_of(pin)) for pin in pins] for pins in one_version_each(blocks)]
    assert lists == [[("a", "1"), ("b", "3")], [("a", "2")]]
    counted = sum(len(pins) for pins in one_version_each(all_blocks(LOCKS)))
    assert counted == len({(p.name, str(p.specifier)) for p in map(pin_of, all_blocks(LOCKS))})


CLEAN = {"name": "a", "version": "1", "vulns": []}
BAD = {
    "name": "b",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["3"]}],
}
SKIPPED = {"name": "c", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("reports", "status", "line"),
    [
        ([CLEAN, CLEAN], 0, "audit: 2 versions, no known vulnerability"),
        ([CLEAN, BAD], 1, "audit: b 2 has PYSEC-1, CVE-1; fixed in 3"),
        ([BAD, SKIPPED], 1, "audit: b 2 has PYSEC-1, CVE-1; fixed in 3"),
        ([CLEAN, SKIPPED], 2, "audit: 1 of 2 versions were not checked (c, ...); "),
    ],
)
def test_a_package_that_is_not_in_the_database_is_not_free_of_vulnerabilities(
    reports: list[dict[str, object]], status: int, line: str
) -> None:
    lines, got = audit_result(reports)
    assert got == status
    assert lines[0].startswith(line)


def test_an_audit_without_network_states_that_nothing_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text("#!/bin/sh\necho 'requests.ConnectionError: no network' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert audit() == 2
    error = "audit: nothing was checked: requests.ConnectionError: no network; run this where "
    assert capsys.readouterr().err.startswith(error)


def test_a_missing_tool_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert supply_chain.main(["lock"]) == 1
    expected = "uv: must be on the PATH; the recipes in Justfile install it\n"
    assert capsys.readouterr().err == expected


def component(block: str) -> dict[str, object]:
    pin = pin_of(block)
    url = f"{supply_chain.INDEX}/{pin.name}/"
    return {
        "name": pin.name,
        "version": version_of(pin),
        "externalReferences": [{"url": url}],
    }


def test_a_bill_of_materials_is_compared_with_the_locks() -> None:
    components = [component(block) for block in all_blocks(LOCKS)]
    assert not list(sbom_problems(json.dumps({"components": components}), LOCKS))
    missing, *rest = components
    problems = list(sbom_problems(json.dumps({"components": rest}), LOCKS))
    assert problems == [f"{missing['name']} {missing['version']}: is only in the locks"]
    rest.append({**missing, "externalReferences": [{"url": "https://mirror.example/simple"}]})
    problems = list(sbom_problems(json.dumps({"components": rest}), LOCKS))
    assert problems == [
        f"{missing['name']}: must come from {supply_chain.INDEX}, got https://mirror.example/simple"
    ]


def make_key(path: Path, signers: Path) -> Path:
    """Make a key for signatures, and the file of signers that names it."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, timeout=20.0)
    public = path.with_name(f"{path.name}.pub").read_text()
    signers.write_text(f'# Keys\nmaintainer namespaces="fairbed-release" {public}')
    return path


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """Return a folder with a signed release; `signers` beside it names the key."""
    folder = tmp_path / "dist"
    (folder / "locks").mkdir(parents=True)
    (folder / "fairbed-0.1.0-py3-none-any.whl").write_bytes(b"wheel")
    (folder / "locks" / "base.txt").write_text("a==1\n")
    sign(make_key(tmp_path / "key", tmp_path / "signers"), folder)
    return folder


@needs_ssh_keygen
def test_a_signed_release_is_verified(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not list(verify(signed, signed.parent / "signers"))
    assert capsys.readouterr().out == f"{signed / SUMS}: signed by maintainer, 2 files\n"


@needs_ssh_keygen
def test_a_changed_a_missing_and_an_added_file_are_found(signed: Path) -> None:
    (signed / "fairbed-0.1.0-py3-none-any.whl").write_bytes(b"other")
    (signed / "locks" / "base.txt").unlink()
    (signed / "fairbed-0.1.1-py3-none-any.whl").write_bytes(b"wheel")
    assert list(verify(signed, signed.parent / "signers")) == [
        f"{signed}/fairbed-0.1.0-py3-none-any.whl: is not the file that was signed; "
        "download it again",
        f"{signed}/fairbed-0.1.1-py3-none-any.whl: is not part of the signed release; remove it",
        f"{signed}/locks/base.txt: is missing",
    ]


@needs_ssh_keygen
@pytest.mark.parametrize("fault", ["sums", "key", "namespace", "signature"])
def test_a_list_of_files_that_no_maintainer_signed_is_refused(signed: Path, fault: str) -> None:
    sums, signers = signed / SUMS, signed.parent / "signers"
    if fault == "sums":
        sums.write_text(sums.read_text().replace("0", "1"))
    elif fault == "key":
        make_key(signed.parent / "other", signers)
    elif fault == "namespace":
        command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", str(signed.parent / "key")]
        command.append(str(sums))
        Path(f"{sums}.sig").unlink()
        subprocess.run(command, check=True, timeout=20.0, capture_output=True)
    else:
        Path(f"{sums}.sig").write_text("-----BEGIN SSH SIGNATURE-----\nno\n")
    with pytest.raises(Problem, match=r"SHA256SUMS.sig: must be by a key of .*signers, got: \S"):
        list(verify(signed, signers))


@needs_ssh_keygen
def test_a_release_without_signature_or_known_key_is_refused(signed: Path) -> None:
    (signed.parent / "none").write_text("# Keys\n\n")
    with pytest.raises(Problem, match="none: must hold the key of a maintainer, got none"):
        list(verify(signed, signed.parent / "none"))
    (signed / f"{SUMS}.sig").unlink()
    with pytest.raises(Problem, match=r"must hold SHA256SUMS and SHA256SUMS\.sig"):
        list(verify(signed, signed.parent / "signers"))


LISTS_PINS = """
import json, re, sys
text = open(sys.argv[2]).read()
pins = re.findall(r"^([A-Za-z0-9._-]+)(?:\\[[^]]*])?==([0-9][0-9.a-z]*)", text, re.MULTILINE)
print(json.dumps({"components": [{"name": name, "version": version} for name, version in pins]}))
"""
"""Stands for cyclonedx-py, which is in another environment."""


@needs_ssh_keygen
def test_a_release_is_complete_signed_and_verified_and_a_changed_wheel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "cyclonedx-py"
    program.write_text(f"#!{sys.executable}{LISTS_PINS}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    dist, signers = tmp_path / "dist", tmp_path / "signers"
    dist.mkdir()
    wheel = dist / "fairbed-9.9-py3-none-any.whl"
    for path in (wheel, dist / "fairbed-9.9.tar.gz"):
        path.write_bytes(b"built")
    key = make_key(tmp_path / "key", signers)

    assert supply_chain.main(["release", str(key), str(dist)]) == 0
    names = {path.relative_to(dist).as_posix() for path in dist.rglob("*") if path.is_file()}
    assert names == {
        *(wheel.name, "fairbed-9.9.tar.gz", "fairbed-9.9.cdx.json", SUMS, f"{SUMS}.sig"),
        *(f"locks/{path.name}" for path in LOCKS.glob("*.txt")),
    }
    assert supply_chain.main(["verify", str(dist), str(signers)]) == 0
    wheel.write_bytes(b"Built")
    capsys.readouterr()
    assert supply_chain.main(["verify", str(dist), str(signers)]) == 1
    error = f"{wheel}: is not the file that was signed; download it again\n"
    assert capsys.readouterr() == ("", error)


def test_a_release_without_its_key_stays_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{SUMS}.sig").write_text("of before")
    assert supply_chain.main(["release", str(tmp_path / "none"), str(tmp_path)]) == 1
    error = f"{tmp_path}/none: must be an SSH key to sign with, got no file; make one: ssh-keygen"
    assert capsys.readouterr().err.startswith(error)
    assert (tmp_path / f"{SUMS}.sig").read_text() == "of before"
