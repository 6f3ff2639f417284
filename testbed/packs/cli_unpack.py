"""`fairbed unpack`: unpack a pack, check it, or run its replays again."""

import argparse
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import msgspec

from fairbed.coordinator.report.findings import counted
from fairbed.testbed.api.errors import one_line_errors
from fairbed.testbed.cli import DONE, FAILED, count_option
from fairbed.testbed.errors import UsageError
from fairbed.testbed.packs.archive import PackReader, opened_pack, unpack_archive
from fairbed.testbed.packs.check import Checked, check_archive, check_folder
from fairbed.testbed.packs.cli_pack import SUFFIX
from fairbed.testbed.packs.manifest import Manifest, PackError
from fairbed.testbed.packs.rerun import AGAIN, Rerun, rerun
from fairbed.testbed.progress import progress
from fairbed.wire.printable import printable


def main(options: argparse.Namespace) -> int:
    """Unpack, check or run again; return the exit code."""
    jobs = count_option("--jobs", options.jobs) or os.cpu_count() or 1
    with one_line_errors():
        try:
            if options.verify:
                return _verify(options)
            folder, manifest = _unpacked(options)
            if options.rerun:
                return _rerun(options, folder, manifest, jobs)
        except PackError as exc:
            raise UsageError(f"unpack: {exc}") from exc
    if options.json:
        about = {"folder": str(folder), "files": len(manifest.files), "runs": len(manifest.runs)}
        print(msgspec.json.encode(about).decode())
    else:
        print(
            f"{printable(str(folder))}: {counted(len(manifest.runs), 'run')}, "
            f"{len(manifest.files)} files; its README.md describes them"
        )
    return DONE


def _unpacked(options: argparse.Namespace) -> tuple[Path, Manifest]:
    """Return the folder of a pack and its manifest; unpack it if it is a file."""
    pack: Path = options.pack
    if pack.is_dir():
        if options.to is not None:
            raise UsageError(f"--to {options.to}: {pack} is unpacked; leave --to out")
        if not options.rerun:
            raise UsageError(f"unpack: {pack} is unpacked; add --verify or --rerun")
        found = check_folder(pack)
        if found.problems:
            raise PackError(f"{found.problems[0]}; unpack it again")
        return pack, found.manifest
    folder = options.to or Path(pack.name.removesuffix(SUFFIX).removesuffix(".zst"))
    if folder == pack and pack.exists():
        raise UsageError(f"--to: must be given for a pack with this name, got {pack}")
    with opened_pack(pack) as reader:
        _check_room(reader, folder, options.max_gb)
        with progress(reader.manifest.bytes, "bytes", "unpack") as bar:
            unpack_archive(reader, folder, bar.advance)
    return folder, reader.manifest


def _check_room(reader: PackReader, folder: Path, max_gb: float) -> None:
    """Check that the files of a pack have room.

    Raises:
        PackError: They are more than the user wants, or than the disk has.
    """
    total = reader.manifest.bytes
    if total > max_gb * 1e9:
        raise PackError(
            f"the files must have at most {max_gb:g} GB, got {total / 1e9:.3g} GB; raise --max-gb"
        )
    beside = next(path for path in folder.absolute().parents if path.exists())
    free = shutil.disk_usage(beside).free
    if total > free:
        raise PackError(
            f"{beside}: must have {total / 1e9:.3g} GB free, got {free / 1e9:.3g} GB; name a "
            "folder of another disk by --to"
        )


def _verify(options: argparse.Namespace) -> int:
    pack: Path = options.pack
    if pack.is_dir():
        found = check_folder(pack)
    else:
        with (
            opened_pack(pack) as reader,
            progress(reader.manifest.bytes, "bytes", "verify") as bar,
        ):
            found = check_archive(reader, bar.advance)
    if options.json:
        print(msgspec.json.encode(_about(found)).decode())
    else:
        manifest = found.manifest
        print(
            f"{printable(str(pack))}: {len(manifest.files)} files, {manifest.bytes / 1e6:,.1f} MB, "
            f"packed {printable(manifest.packed)} by Fairbed {printable(manifest.fairbed)}"
        )
        for line in found.problems:
            print(f"problem: {printable(line)}")
        for line in found.notes:
            print(printable(line))
        if not found.problems:
            print("all hashes agree")
    return FAILED if found.problems else DONE


def _about(found: Checked) -> dict[str, object]:
    return {
        "files": len(found.manifest.files),
        "runs": len(found.manifest.runs),
        "problems": found.problems,
        "notes": found.notes,
    }


def _rerun(options: argparse.Namespace, folder: Path, manifest: Manifest, jobs: int) -> int:
    if (folder / AGAIN).exists():
        raise UsageError(
            f"{folder / AGAIN}: must not exist, got the runs of an earlier --rerun; remove it"
        )
    with progress(len(manifest.runs), "runs", "rerun") as bar:
        found = rerun(
            folder, manifest, allow_code=options.allow_code, jobs=jobs, advance=bar.advance
        )
    if options.json:
        print(msgspec.json.encode(found).decode())
    else:
        _print(found, folder)
    return FAILED if any(one.outcome in ("different", "failed") for one in found) else DONE


def _print(found: list[Rerun], folder: Path) -> None:
    for one in found:
        for line in one.lines:
            print(f"{printable(one.folder)}: {one.outcome}: {printable(line)}")
    counts = Counter(one.outcome for one in found)
    words = ", ".join(f"{counts[word]} {word}" for word in sorted(counts))
    place = printable(str(folder / AGAIN))
    print(f"{counted(len(found), 'run')}: {words}; the new ones are in {place}")
    if not counts["different"] and counts["equal"]:
        print("no difference in any number of a replay that was run again", file=sys.stderr)
