"""What Fairbed knows: `profiles` and `data`."""

import argparse
import os
from pathlib import Path

import profiles
from profiles import Profile, ProfileError
from testbed.commands import DONE, FAILED, UsageError
from testbed.datasets.catalogue import DatasetStatus, describe_all, verify


def main(options: argparse.Namespace) -> int:
    """Carry one of the commands out; return the exit code."""
    actions = {
        ("profiles", "list"): _list_profiles,
        ("profiles", "show"): _show_profiles,
        ("profiles", "check"): _check_profiles,
        ("data", "list"): _list_data,
        ("data", "verify"): _verify_data,
    }
    try:
        return actions[options.command, options.action](options.what)
    except ProfileError as exc:
        raise UsageError(str(exc)) from exc


def _list_profiles(what: list[str]) -> int:
    print(f"{'profile':<24}{'cores':>6}{'speed':>7}{'memory':>9}{'down':>8}{'up':>8}{'delay':>8}")
    for name in what or profiles.names():
        p = profiles.load(name)
        print(
            f"{p.name:<24}{p.cores:>6}{p.training_speed:>7.2f}{p.memory_bytes / 2**30:>6.1f} GB"
            f"{_mbit(p.link.down_bps):>8}{_mbit(p.link.up_bps):>8}{p.link.delay_s * 1e3:>5.1f} ms"
        )
    print("\nspeed: one training step, in cores of the reference machine; rates in Mbit/s")
    print(f"links: {', '.join(profiles.link_names())}")
    return DONE


def _show_profiles(what: list[str]) -> int:
    if not what:
        raise UsageError(f"profiles show: name at least one of {', '.join(profiles.names())}")
    for name in what:
        _show(profiles.load(name))
    return DONE


def _show(profile: Profile) -> None:
    print(f"{profile.name}: {profile.title} ({profile.kind}); {profile.licence}")
    link = profile.link
    for key, quantity in (
        ("cores", profile.core_count),
        ("core_speed", profile.one_core),
        ("memory_bytes", profile.memory),
        ("storage_read_bytes_per_s", profile.storage_read),
        ("background_load", profile.busy),
        ("engine_threads", profile.threads),
        ("link.down_bps", link.down),
        ("link.up_bps", link.up),
        ("link.delay_s", link.delay),
    ):
        print(f"  {key:<26}{quantity.value:<14g}{quantity.tag:<12}{quantity.source}")


def _check_profiles(what: list[str]) -> int:
    if not what:
        raise UsageError("profiles check: name at least one .toml file")
    problems = [problem for path in what for problem in profiles.check(Path(path))]
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{len(what)} checked, nothing wrong")
    return FAILED if problems else DONE


def _list_data(what: list[str]) -> int:
    statuses = describe_all(os.environ)
    known = [status.name for status in statuses]
    for name in what:
        if name not in known:
            raise UsageError(f"data list: no data set {name!r}; there are: {', '.join(known)}")
    for status in statuses:
        if not what or status.name in what:
            _print_status(status)
    return DONE


def _verify_data(what: list[str]) -> int:
    names = what or [status.name for status in describe_all(os.environ) if status.is_available]
    try:
        found = [verify(name, os.environ) for name in names]
    except ValueError as exc:
        raise UsageError(f"data verify: {exc}") from exc
    for status in found:
        _print_status(status)
    return DONE if all(status.is_available for status in found) else FAILED


def _print_status(status: DatasetStatus) -> None:
    if status.is_available:
        examples = f"{status.n} examples, " if status.n is not None else ""
        print(f"ok       {status.name:<16}{examples}{status.description} ({status.where})")
    else:
        print(f"missing  {status.name:<16}{status.problem}; {status.what_to_do}")


def _mbit(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e6:.1f}"
