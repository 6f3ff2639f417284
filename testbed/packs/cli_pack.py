"""`fairbed pack`: write a run or a grid into one file, with all that it needs to run again."""

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from fairbed.coordinator.report.findings import counted
from fairbed.coordinator.store import resolve_run
from fairbed.testbed.api import RUNS
from fairbed.testbed.api.errors import one_line_errors
from fairbed.testbed.api.run import Run
from fairbed.testbed.cli import DONE
from fairbed.testbed.compare.folder import MANIFEST as GRID_MANIFEST
from fairbed.testbed.errors import UsageError
from fairbed.testbed.packs.archive import write_archive
from fairbed.testbed.packs.contents import Contents, contents_of
from fairbed.testbed.packs.manifest import PackError
from fairbed.testbed.progress import progress
from fairbed.wire.printable import printable

SUFFIX = ".tar.zst"


def main(options: argparse.Namespace) -> int:
    """Pack a run or a grid; return the exit code."""
    given = Path(options.what)
    with one_line_errors():
        is_grid = (given / GRID_MANIFEST).exists()
        what = given if is_grid else resolve_run(RUNS, options.what)
        out = options.out or Path(f"{what.resolve().name}{SUFFIX}")
        try:
            pack = _contents(what, is_grid, options)
            _check_size(pack, options.max_gb)
            total = pack.manifest.bytes
            with progress(total, "bytes", "pack") as bar:
                write_archive(out, pack.manifest, pack.sources, bar.advance)
        except PackError as exc:
            raise UsageError(f"pack: {exc}") from exc
    manifest = pack.manifest
    for note in pack.notes:
        print(f"warning: {printable(note)}", file=sys.stderr)
    about = {
        "pack": str(out),
        "bytes": out.stat().st_size,
        "unpacked_bytes": total,
        "runs": len(manifest.runs),
        "files": len(manifest.files),
        "left_out": [one.place for one in manifest.left_out],
        "code": manifest.paths != [],
    }
    if options.json:
        print(msgspec.json.encode(about).decode())
        return DONE
    print(
        f"{printable(str(out))}: {counted(len(manifest.runs), 'run')}, "
        f"{len(manifest.files)} files, {total / 1e6:,.1f} MB, "
        f"packed {out.stat().st_size / 1e6:,.1f} MB"
    )
    if manifest.left_out:
        places = ", ".join(one.place for one in manifest.left_out[:3])
        more = f" and {len(manifest.left_out) - 3} more" if len(manifest.left_out) > 3 else ""
        print(
            f"not in it, with hash and size: {printable(places)}{more}; --with-data adds the files "
            "below FAIRBED_DATA, if their licence allows it"
        )
    print("names of devices and operators are in it: look at it before you publish it")
    return DONE


def _contents(what: Path, is_grid: bool, options: argparse.Namespace) -> Contents:
    report = b""
    if not is_grid:
        with tempfile.TemporaryDirectory() as scratch:
            page = Run.open(what).report(Path(scratch, "report.html"))
            report = page.read_bytes()
    return contents_of(
        what, with_data=options.with_data, leave_out=options.leave_out, report=report
    )


def _check_size(pack: Contents, max_gb: float) -> None:
    """Check the size of a pack.

    Raises:
        PackError: It is larger than the user wants.
    """
    total = pack.manifest.bytes
    if total > max_gb * 1e9:
        largest = max(pack.manifest.files, key=lambda file: file.bytes)
        raise PackError(
            f"the files must have at most {max_gb:g} GB, got {total / 1e9:.3g} GB (the largest is "
            f"{largest.place} with {largest.bytes / 1e9:.2g} GB); leave some out with "
            "--leave-out 'run/models/*', or raise --max-gb"
        )
