"""The service of the agent under systemd: its unit, and the notifications to its manager.

`notify_systemd` sends READY=1 when the event loop runs, and WATCHDOG=1 from the event loop, so that
systemd restarts an agent whose loop hangs. Training runs in a thread, so a long step delays none.

Source: sd_notify(3), systemd.service(5), systemd.exec(5), systemd.resource-control(5).
"""

import os
import re
import socket
from collections.abc import Mapping

import anyio

UNIT = "fairbed-agent.service"

WATCHDOG_S = 120
"""Silence after which systemd restarts the agent; longer than any pause of the event loop that was
seen while a board swaps."""

MIN_PING_S = 0.1


def _notify(address: str, state: str) -> None:
    """Send one notification; a manager that does not listen is ignored."""
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
        try:
            link.sendto(state.encode(), name)
        except OSError:
            return


async def notify_systemd(environment: Mapping[str, str] = os.environ) -> None:
    """Report readiness once, then send the watchdog's pings until cancelled.

    Returns at once without systemd (`NOTIFY_SOCKET`), or after READY=1 without a watchdog.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    _notify(address, "READY=1")
    try:
        limit_s = int(environment.get("WATCHDOG_USEC", "")) / 1e6
    except ValueError:
        return
    is_other = environment.get("WATCHDOG_PID") not in (None, str(os.getpid()))
    if limit_s <= 0.0 or is_other:
        return
    while True:
        _notify(address, "WATCHDOG=1")
        await anyio.sleep(max(limit_s / 3, MIN_PING_S))


HARDENED = """\
TimeoutStartSec=120
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""
"""Lines of every service of Fairbed."""

HARDENED_SYSTEM = """\
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes

[Install]
WantedBy=multi-user.target
"""
"""Last lines of a service of the system: it has a mount namespace of its own."""

USER_SERVICE = """
[Install]
WantedBy=default.target
"""
"""Last lines of a service of a user. It has no mount namespace: where the system forbids those to
users, as Ubuntu 24.04 does, the service would not start."""

_SERVICE = f"""\
[Unit]
Description=Fairbed device agent
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={{command}}
Restart=always
RestartSec=10
# 2: configuration or data break a rule; 3: another live agent has this identity
RestartPreventExitStatus=2 3
WatchdogSec={WATCHDOG_S}
MemoryMax=75%
CPUQuota={{cpu_quota}}%
CPUWeight=50
TasksMax=64
OOMScoreAdjust=500
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
{HARDENED}"""

_SYSTEM = f"""\
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
DynamicUser=yes
StateDirectory=fairbed
StateDirectoryMode=0700
CacheDirectory=fairbed
CacheDirectoryMode=0700
CapabilityBoundingSet=
PrivateMounts=yes
ProtectProc=invisible
RemoveIPC=yes
{HARDENED_SYSTEM}"""


def quoted(word: str) -> str:
    """Return a word of a command line in a unit (systemd.service(5), "Command lines")."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@/.:=+-]+", escaped) else f'"{escaped}"'


def unit_text(command: str, *, is_system: bool, cores: int) -> str:
    """Return the unit of the agent.

    A system unit runs as a user of its own that systemd makes (`DynamicUser`).

    Args:
        command: Absolute command line of the agent.
        is_system: Started by the system's manager and not by that of a user.
        cores: Cores of this machine; the agent may use two of them, one trains.
    """
    head = _SERVICE.format(command=command, cpu_quota=100 * max(1, min(2, cores)))
    return head + (_SYSTEM if is_system else USER_SERVICE)
