"""The page of a pack, for a person without Fairbed."""

from fairbed.coordinator.report.findings import counted
from fairbed.testbed.packs.manifest import LOCK, MANIFEST, Manifest
from fairbed.wire.printable import printable


def readme(manifest: Manifest) -> str:
    """Return the page as Markdown."""
    replays = sum(run.clock == "virtual" for run in manifest.runs)
    lines = [
        f"# {printable(manifest.name)}: {counted(len(manifest.runs), 'run')} of Fairbed",
        "",
        f"Packed {manifest.packed} by Fairbed {manifest.fairbed}. {MANIFEST} has the size and the "
        f"SHA-256 of each file, and {LOCK} the versions of all packages.",
        "",
        "    pip install fairbed[testbed]",
        "    fairbed unpack PACK --verify   # checks it, and lists what this machine lacks",
        "    fairbed unpack PACK --rerun    # runs its replays again, and compares every number",
        "",
        f"Replays ({replays} of {len(manifest.runs)}) have the same numbers on each machine with "
        "the same packages. Live runs have the times of their machine.",
        "",
    ]
    if manifest.paths:
        lines += [
            "It has code. `--rerun` runs it only with `--allow-code`: read it first, it can do all "
            "that you can.",
            "",
        ]
    if manifest.installed:
        lines += ["These parts are of packages that must be installed:", ""]
        lines += [f"- `{printable(name)}`" for name in manifest.installed] + [""]
    if data := [one for one in manifest.left_out if one.reason == "data"]:
        lines += [
            "These files of data sets are not in it. Get them from their authors, and put them "
            "there, or set FAIRBED_DATA to the folder that has them:",
            "",
            "| file | bytes | SHA-256 |",
            "|---|---|---|",
        ]
        lines += [f"| {printable(x.place)} | {x.bytes:,} | {x.sha256} |" for x in data] + [""]
    if others := [one for one in manifest.left_out if one.reason == "pattern"]:
        lines += ["These files were left out. Ask the author of the pack:", ""]
        lines += [f"- {printable(one.place)}, SHA-256 {one.sha256}" for one in others] + [""]
    return "\n".join(lines)
