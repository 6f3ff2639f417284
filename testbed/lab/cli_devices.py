"""`fairbed enroll` at a lab, and `fairbed devices`: enrol, list, rename and revoke its devices."""

import argparse
import getpass
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone

import msgspec
from msgspec import Struct

from fairbed.device_agent.installed import agent_version
from fairbed.testbed.broker.permissions import COORDINATOR, OPERATOR, Role, user_of
from fairbed.testbed.cli import DONE
from fairbed.testbed.errors import LabError, RunError, UsageError
from fairbed.testbed.lab.audit import Audit
from fairbed.testbed.lab.folder import (
    SETTINGS_FILE,
    Lab,
    find_lab,
    lab_option,
    open_lab,
    server_addresses,
)
from fairbed.testbed.lab.identities import (
    LAB_SERVICE,
    Contact,
    Identities,
    Identity,
    require_packages,
)
from fairbed.testbed.lab.service import has_account, running_pid
from fairbed.wire.messages import is_device_name
from fairbed.wire.text import NotText, text_of

MAX_MINUTES = 7 * 24 * 60
"""Longest life of a token: a week, for boards that are set up elsewhere."""

MAX_DAYS = 3650

APPLY_S = 5.0
"""Longest wait for the lab to take a revoked device out of the broker; it takes 0.2 s."""


def main(options: argparse.Namespace) -> int:
    """Run `fairbed devices`; return the exit code."""
    require_packages()
    actions = {"list": _list, "rename": _rename, "revoke": _revoke, None: _list}
    return actions[options.action](options)


def enroll(options: argparse.Namespace) -> int | None:
    """Enrol at the lab; None if there is none, or the device joins a run with its own broker."""
    has_lab = (find_lab(options.lab) / SETTINGS_FILE).exists()
    if options.run is None and (has_lab or options.lab is not None):
        require_packages()
        return _enrol(options)
    if options.all is not None:
        raise UsageError(
            "--all: must be for a lab, got a live run; give it one NAME, or make a lab, which "
            "enrols any number of devices once: fairbed lab init"
        )
    return None


# Enrolment ----------------------------------------------------------------------------------------


class Invitation(Struct, frozen=True, kw_only=True):
    """What `fairbed enroll --json` prints for one device."""

    name: str | None
    """None is the host name of the device."""
    role: Role
    line: str
    """To run on the device, once; it has the token."""
    expires: str
    """Of the token, UTC, ISO 8601."""


def _enrol(options: argparse.Namespace) -> int:
    lab = open_lab(options.lab)
    names = _names(options)
    address = _address(lab, options.address)
    if options.upgrade:
        if names:
            raise UsageError(
                "--upgrade: must have no names, got some; the line is the same for all devices"
            )
        print(install_line(lab, address, None))
        return DONE
    _check_options(options)
    now_s = time.time()
    lifetime_s = 60.0 * options.minutes
    expires_s = None if options.expires is None else now_s + 86400.0 * options.expires
    invitations = []
    with Identities(lab.database) as identities:
        if not options.replace:
            _check_free(identities, names, options.role, now_s)
        wanted: Sequence[str | None] = names or [None]
        for name in wanted:
            token = identities.new_token(
                name,
                options.role,
                tenant=options.tenant,
                now_s=now_s,
                lifetime_s=lifetime_s,
                identity_expires_s=expires_s,
                replaces=options.replace,
            )
            Audit(lab.audit).write(
                "token",
                at_s=now_s,
                name=name or "",
                role=options.role,
                by=getpass.getuser(),
                detail=f"{options.minutes:g} minutes{', replaces' if options.replace else ''}",
            )
            invitations.append(
                Invitation(
                    name=name,
                    role=options.role,
                    line=install_line(lab, address, token),
                    expires=_instant(now_s + lifetime_s),
                )
            )
    if options.json:
        print(msgspec.json.encode(invitations).decode())
    else:
        _print_lines(invitations, with_qr=options.qr)
        _print_notes(lab, invitations, options.minutes)
    return DONE


def install_line(lab: Lab, address: str, token: str | None) -> str:
    """Return the line that installs an agent and enrols the device.

    The key of the server is pinned, so that the script is the lab's although the device does not
    know its CA yet. The token reaches `sh` by its input, before the script, so that no process has
    it as an argument, `sudo` neither. Without a script `sh` gets a line that prints why.

    Args:
        lab: The lab.
        address: Its address for the device.
        token: None for a device that has an identity already.
    """
    from fairbed.testbed.lab.certificates import key_pin

    try:
        pin = key_pin(lab.server.read_bytes())
    except (OSError, ValueError) as exc:
        raise LabError(f"{lab.server}: must be a certificate, got {exc}; restore it") from exc
    host = f"[{address}]" if ":" in address else address
    url = f"https://{host}:{lab.settings.enrol_port}/install"
    first = "" if token is None else f"echo FAIRBED_TOKEN={token}; "
    problem = (
        f"fairbed: no script of the lab {lab.settings.name} at {url}, see the line of curl above; "
        "on the lab host run fairbed lab status, and use a new line of fairbed enroll"
    )
    otherwise = f"echo 'echo \"{problem}\" >&2; exit 1'"
    return f"{{ {first}curl -fsSk --pinnedpubkey 'sha256//{pin}' {url} || {otherwise}; }} | sh"


def _names(options: argparse.Namespace) -> list[str]:
    """Return the names of the command line and of the file, without repetition."""
    names = list(options.names)
    if options.all is not None:
        try:
            text = text_of(options.all.read_bytes())
        except FileNotFoundError as exc:
            raise UsageError(
                f"{options.all}: there is no such file; write one with one name a line"
            ) from exc
        except (OSError, NotText) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise UsageError(
                f"{options.all}: must be a text file with one name a line, got: {reason}"
            ) from exc
        names += [line for row in text.splitlines() if (line := row.partition("#")[0].strip())]
        if not names:
            raise UsageError(f"{options.all}: must have one name a line, got none")
    for name in names:
        if not is_device_name(name):
            raise UsageError(f"name: must be 1 to 32 of a-z, 0-9 and hyphen, got {name[:60]!r}")
        if names.count(name) > 1:
            raise UsageError(f"name: must be given once, got {name} {names.count(name)} times")
    return names


def _address(lab: Lab, given: str | None) -> str:
    known = server_addresses(lab.settings)
    if given is None:
        return lab.settings.addresses[0]
    if given not in known:
        raise UsageError(
            f"--address: must be in the lab's certificate, got {given!r}; it has "
            f"{', '.join(known)}; add others to addresses in {lab.folder / SETTINGS_FILE} and "
            "restart the lab"
        )
    return given


def _check_options(options: argparse.Namespace) -> None:
    if not 0 < options.minutes <= MAX_MINUTES:
        raise UsageError(
            f"--minutes: must be above 0, at most {MAX_MINUTES}, got {options.minutes}"
        )
    if options.expires is not None and not 0 < options.expires <= MAX_DAYS:
        raise UsageError(
            f"--expires: must be above 0 and at most {MAX_DAYS} days, got {options.expires:g}"
        )
    if not is_device_name(options.tenant):
        raise UsageError(
            f"--tenant: must be 1 to 32 of a-z, 0-9 and hyphen, got {options.tenant[:60]!r}"
        )


def _check_free(identities: Identities, names: Sequence[str], role: Role, now_s: float) -> None:
    """Refuse a name that a valid identity has: its token could not be redeemed."""
    for name in names:
        found = identities.get(name, role)
        if found is not None and found.is_accepted(now_s):
            raise UsageError(
                f"{name}: taken by an identity of this lab; choose another name, or give the name "
                "to a new device with --replace; a line that upgrades an enrolled device: fairbed "
                "enroll --upgrade"
            )


def _print_lines(invitations: Sequence[Invitation], *, with_qr: bool) -> None:
    for invitation in invitations:
        if len(invitations) > 1:
            print(f"# {invitation.name}")
        print(invitation.line)
        if with_qr:
            import segno

            segno.make(invitation.line, error="l").terminal(compact=True)


def _print_notes(lab: Lab, invitations: Sequence[Invitation], minutes: float) -> None:
    where = invitations[0].name or "the device"
    each = "each line" if len(invitations) > 1 else "the line"
    print(
        f"{each} is good once, for {minutes:g} minutes; paste it into a shell on {where} (with "
        "sudo before sh at its end for a service of the system)",
        file=sys.stderr,
    )
    if running_pid(lab) is None:
        print(
            f"warning: the lab {lab.settings.name} is down; start it: fairbed lab up"
            f"{lab_option(lab.folder)}",
            file=sys.stderr,
        )


# Devices ------------------------------------------------------------------------------------------


class DeviceLine(Struct, frozen=True, kw_only=True):
    """What `fairbed devices --json` prints for one identity; times are UTC, ISO 8601."""

    name: str
    role: Role
    tenant: str
    state: str
    """`online`, `offline`, `new` (not seen yet), `revoked`, `expired`, or `unknown` while the lab
    is down; `-` for persons."""
    last_contact: str | None
    address: str | None
    """Address that it enrolled from."""
    agent: str | None
    """Version of its agent, or `protocol N` of an agent whose messages cannot be read."""
    enrolled: str
    expires: str | None
    emulated_by: str | None
    """Run that emulates it; None for a real device."""
    problem: str | None
    """Why agent and lab do not fit, and what to do."""


def _list(options: argparse.Namespace) -> int:
    lab = open_lab(options.lab)
    now_s, is_up = time.time(), running_pid(lab) is not None
    with Identities(lab.database) as identities:
        contacts = identities.contacts()
        lines = [
            device_line(identity, contacts.get(identity.name), now_s, is_up=is_up)
            for identity in identities.all()
            if identity.user not in OWN_USERS
        ]
    if getattr(options, "json", False):
        print(msgspec.json.encode(lines).decode())
        return DONE
    if not lines:
        print(
            f"no devices in the lab {lab.settings.name}; enrol one with: fairbed enroll NAME"
            f"{lab_option(lab.folder)}"
        )
        return DONE
    print("\n".join(table(lines)))
    for line in lines:
        if line.problem is not None:
            print(line.problem)
    if not is_up:
        option = lab_option(lab.folder)
        print(f"the lab {lab.settings.name} is down; start it with: fairbed lab up{option}")
    return DONE


OWN_USERS = frozenset(user_of(*one) for one in (COORDINATOR, LAB_SERVICE, OPERATOR))
"""Identities of the lab host itself, made with the lab."""


def device_line(
    identity: Identity, contact: Contact | None, now_s: float, *, is_up: bool
) -> DeviceLine:
    """Return the line of an identity.

    Args:
        identity: The identity.
        contact: Its last contact, if it has one.
        now_s: Unix time.
        is_up: The lab runs, so that it knows which devices are online.
    """
    contact = contact if identity.role == "device" else None
    agent = None if contact is None else contact.agent
    return DeviceLine(
        name=identity.name,
        role=identity.role,
        tenant=identity.tenant,
        state=_state(identity, contact, now_s, is_up=is_up),
        last_contact=None if contact is None else _instant(contact.at_s),
        address=None if contact is None else contact.address,
        agent=agent,
        enrolled=_instant(identity.created_s),
        expires=None if identity.expires_s is None else _instant(identity.expires_s),
        emulated_by=identity.run,
        problem=version_problem(identity.name, agent, agent_version()),
    )


def _state(identity: Identity, contact: Contact | None, now_s: float, *, is_up: bool) -> str:
    if identity.revoked_s is not None:
        return "revoked"
    if not identity.is_accepted(now_s):
        return "expired"
    if identity.role != "device":
        return "-"
    if contact is None or contact.state is None:
        return "new"
    return contact.state if is_up else "unknown"


def version_problem(name: str, agent: str | None, own: str) -> str | None:
    """Return why the version of an agent does not fit, and what to do; None if it fits.

    Args:
        name: Of the device.
        agent: Version of its agent, or `protocol N`; None if unknown.
        own: Version of Fairbed on this host.
    """
    if agent is None or agent == own:
        return None
    upgrade = "run the line of this command on the device: fairbed enroll --upgrade"
    if agent.startswith("protocol "):
        return f"{name}: its agent has {agent}, which this host ({own}) cannot read; {upgrade}"
    return f"{name}: agent {agent}, this host {own}; if it misbehaves, {upgrade}"


def table(lines: Sequence[DeviceLine]) -> list[str]:
    """Return the table of `fairbed devices`."""
    rows = [("NAME", "STATE", "LAST CONTACT", "AGENT", "ENROLLED", "EXPIRES")]
    for line in lines:
        name = line.name if line.role == "device" else f"{line.name} ({line.role})"
        rows.append(
            (
                name if line.emulated_by is None else f"{name} (emulated)",
                line.state,
                (line.last_contact or "-").replace("T", " ").removesuffix("Z"),
                line.agent or "-",
                line.enrolled[:10],
                (line.expires or "never")[:10],
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _instant(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _rename(options: argparse.Namespace) -> int:
    lab = open_lab(options.lab)
    with Identities(lab.database) as identities:
        identities.rename(options.old, options.new, now_s=time.time())
    Audit(lab.audit).write(
        "rename",
        at_s=time.time(),
        name=options.new,
        role="device",
        by=getpass.getuser(),
        detail=f"was {options.old}",
    )
    print(
        f"{options.old}: renamed to {options.new}; its agent learns the name from the lab when it "
        "connects again, and a live run sees a new device"
    )
    return DONE


def _revoke(options: argparse.Namespace) -> int:
    lab = open_lab(options.lab)
    name, role = options.name, options.role
    with Identities(lab.database) as identities:
        identities.revoke(name, role, now_s=time.time())
        identity = identities.get(name, role)
        assert identity is not None, "it was revoked above"
        Audit(lab.audit).write(
            "revoke", at_s=time.time(), name=name, role=role, by=getpass.getuser()
        )
        if running_pid(lab) is None:
            print(f"{name}: revoked; the lab is down, and refuses it when it is up")
            return DONE
    after_s = _await_removal(lab, identity.user)
    if after_s is None:
        option = lab_option(lab.folder)
        raise RunError(
            f"{name}: revoked, but the lab must take it out of the broker within {APPLY_S:g} s, "
            f"and did not; restart the lab: fairbed lab down{option}, fairbed lab up{option}"
        )
    print(f"{name}: revoked; the broker refuses it after {after_s:.1f} s")
    return DONE


def _await_removal(lab: Lab, user: str) -> float | None:
    """Return the seconds until a user is out of the broker's configuration; None if it stays."""
    started = time.monotonic()
    while (passed_s := time.monotonic() - started) < APPLY_S:
        if not has_account(lab, user):
            return passed_s
        time.sleep(0.02)
    return None
