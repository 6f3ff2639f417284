"""`device-agent doctor`: what keeps this device from taking part, one line each, and what to do.

The checks go from the machine to the lab: a later check is left out where an earlier problem
explains it. Nothing is changed, and the running agent is not disturbed: the doctor logs in under a
client id of its own.
"""

import math
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from fairbed.device_agent.cgroup import cpu_quotas, memory_limit_bytes, own_groups
from fairbed.device_agent.config import (
    AgentConfig,
    AllowedClient,
    default_cache_folder,
    load_config,
)
from fairbed.device_agent.enrolment import (
    Enrolled,
    Lab,
    Run,
    ask_standing,
    clock_problem,
    connection_problem,
    default_places,
    enrolled,
    has_systemd,
    parsed_date,
    run_command,
    utc_day,
)
from fairbed.device_agent.errors import AgentError, DataError, EngineError, LabProblem
from fairbed.device_agent.installed import agent_version
from fairbed.device_agent.power import WHOLE_RAILS, energy_meter
from fairbed.device_agent.sensors import MonotonicClock, RealSensors
from fairbed.device_agent.systemd import UNIT
from fairbed.wire.artifact import Artifact, decode_artifact
from fairbed.wire.enrolment import RenewReply
from fairbed.wire.errors import DecodeError, TransportError
from fairbed.wire.messages import PROTOCOL_VERSION
from fairbed.wire.transport.address import Address, node_urls, parse_url
from fairbed.wire.transport.base import LinkUp
from fairbed.wire.transport.client import MqttTransport

if TYPE_CHECKING:
    from numpy.typing import NDArray

State: TypeAlias = Literal["ok", "warning", "problem"]

MIN_PYTHON = (3, 10)
MIN_GLIBC = (2, 27)
"""Of the onnxruntime wheels: manylinux_2_27 and manylinux_2_28."""

MIN_MEMORY_BYTES, FEW_MEMORY_BYTES = 256 << 20, 512 << 20
MIN_DISK_BYTES, FEW_DISK_BYTES = 100 << 20, 1 << 30

LIMIT_S = 10.0
"""Longest wait for one answer of the network."""

CERTIFICATE_DAYS = 30
"""A certificate that ends earlier is reported."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    state: State
    found: str
    what_to_do: str = ""


def report(findings: Iterable[Finding], *, as_json: bool, write: Callable[[str], object]) -> int:
    """Write the findings, each when it is known; return 1 if one is a problem, else 0."""
    kept = []
    for finding in findings:
        kept.append(finding)
        if not as_json:
            hint = f"; {finding.what_to_do}" if finding.what_to_do else ""
            write(f"{finding.state:<7}  {finding.check:<12}  {finding.found}{hint}\n")
    if as_json:
        import json

        write(json.dumps([asdict(finding) for finding in kept], indent=2) + "\n")
    return 1 if any(finding.state == "problem" for finding in kept) else 0


def examine(
    config_path: Path | None, run: Run = run_command, data: Path | None = None
) -> Iterator[Finding]:
    """Yield the findings of this device.

    Args:
        config_path: Configuration of the agent; None is the one that `join` wrote, if there is one.
        run: Runs `systemctl`.
        data: Own data to examine; not given: the file of the configuration, if there is one.
    """
    sensors = RealSensors()
    yield from machine_findings(
        python=sys.version_info[:2],
        machine=platform.machine(),
        pointer_bits=8 * struct.calcsize("P"),
        libc=platform.libc_ver(),
        is_linux=sys.platform == "linux",
    )
    yield _engine()
    yield memory_finding(sensors.memory_bytes())
    path = config_path or default_places().config
    if config_path is None and not path.exists():
        if data is not None:
            yield from data_findings(data, default_cache_folder())
        yield disk_finding(Path.home(), shutil.disk_usage(Path.home()).free)
        yield Finding(
            "identity",
            "problem",
            f"none in {path}",
            "on the lab host: fairbed enroll NAME, and run the line that it prints on this device; "
            "or give --config FILE",
        )
        return
    try:
        config = load_config(path, {})
    except AgentError as exc:
        yield Finding("config", "problem", str(exc))
        return
    yield Finding("config", "ok", str(path))
    yield from _access(path)
    folder = _existing(config.cache_path)
    yield disk_finding(folder, shutil.disk_usage(folder).free)
    yield from model_findings(config.allow_models)
    yield from client_findings(config.clients)
    if own_data := data or config.data_path:
        yield from data_findings(own_data, folder)
    yield from network_findings(config)
    yield from sensor_findings(sensors)
    yield _power(config)
    yield from limit_findings(Path("/"))
    yield from unit_findings(run)


# Machine ------------------------------------------------------------------------------------------


def machine_findings(
    *,
    python: tuple[int, ...],
    machine: str,
    pointer_bits: int,
    libc: tuple[str, str],
    is_linux: bool,
) -> Iterator[Finding]:
    """Yield what is known of interpreter, processor and C library."""
    version = ".".join(map(str, python))
    is_new = python >= MIN_PYTHON
    yield Finding(
        "python",
        "ok" if is_new else "problem",
        f"{version}, {sys.executable}",
        "" if is_new else "install Python 3.10 or newer and join again",
    )
    if pointer_bits == 32:
        yield Finding(
            "processor",
            "problem",
            f"{machine} with a 32-bit system, for which onnxruntime has no package",
            "install the 64-bit edition of the operating system",
        )
    else:
        yield Finding("processor", "ok", f"{machine}, {pointer_bits} bits")
    if not is_linux:
        return
    name, number = libc
    digits = tuple(int(part) for part in re.findall(r"\d+", number)[:2])
    if name != "glibc":
        yield Finding(
            "libc",
            "problem",
            f"{name or 'musl or another C library'}, for which onnxruntime has no package",
            "use a system with glibc, such as Debian, Ubuntu or Fedora",
        )
    elif digits < MIN_GLIBC:
        yield Finding("libc", "problem", f"glibc {number}", "install a newer system: glibc 2.28")
    else:
        yield Finding("libc", "ok", f"glibc {number}")


def _engine() -> Finding:
    """Compute a gradient with the engine and compare it with the expected one."""
    from fairbed.device_agent.engines.base import self_check
    from fairbed.device_agent.engines.onnx import OnnxEngine
    from fairbed.device_agent.installed import engine_version

    hint = "install it again: run the line of fairbed enroll on this device"
    try:
        artifact = Path(__file__).with_name("engines") / "self_check.task"
        self_check(OnnxEngine(decode_artifact(artifact.read_bytes())))
        return Finding("engine", "ok", f"{engine_version()}, gradients are correct")
    except (EngineError, ImportError, OSError) as exc:
        return Finding("engine", "problem", " ".join(str(exc).split()), hint)


def model_findings(modules: Iterable[str]) -> Iterator[Finding]:
    """Yield whether this device can import the modules that its owner allows, and has torch."""
    from fairbed.device_agent.installed import installed_engines, installed_version
    from fairbed.wire.models import source_hash
    from fairbed.wire.plugins import PluginError

    for module in modules:
        try:
            found = f"{module}, sha256 {source_hash(module).hex()[:12]}"
        except (PluginError, OSError) as exc:
            text = " ".join(str(exc).split()).partition("; ")[0]
            hint = f"copy {module} to this device, or take it out of allow_models"
            yield Finding("model", "problem", text, hint)
            continue
        if "torch" in installed_engines():
            yield Finding("model", "ok", f"{found}; torch {installed_version('torch') or ''}")
        else:
            yield Finding(
                "model", "problem", f"{found}, but torch is not installed", "pip install torch"
            )


def client_findings(clients: Mapping[str, AllowedClient]) -> Iterator[Finding]:
    """Yield whether this device has the clients that its owner allows, and their interpreters."""
    if not clients:
        return
    from fairbed.device_agent.clients.allowed import client_hash, folder_of

    for name, client in sorted(clients.items()):
        python = client.python or sys.executable
        try:
            digits = client_hash(name, client).hex()[:12]
        except AgentError as exc:
            yield Finding("client", "problem", str(exc), f"correct clients.{name} in agent.toml")
            continue
        if shutil.which(python) is None:
            yield Finding(
                "client",
                "problem",
                f"{name}: {python} must be an interpreter, got no program",
                f"correct clients.{name}.python in agent.toml",
            )
        elif client.data is not None and not Path(client.data).expanduser().exists():
            yield Finding(
                "client",
                "problem",
                f"{name}: its data must exist, got {client.data}",
                f"correct clients.{name}.data in agent.toml",
            )
        else:
            found = f"{name}: {folder_of(client)}, sha256 {digits}, run by {python}"
            yield Finding("client", "ok", found)


def data_findings(path: Path, cache: Path) -> Iterator[Finding]:
    """Yield whether own data can be read, and fit the task that this device had last.

    Args:
        path: The file.
        cache: Folder of the cache; the newest task in it is compared, also in folders below.
    """
    import numpy as np

    from fairbed.device_agent.examples import OwnData, same_columns
    from fairbed.wire.preparation import PADDING, UNKNOWN, TextPreparation
    from fairbed.wire.scale import other_scale, scale_of

    task = _newest_task(cache)
    own = OwnData(path)
    if task is not None:
        own = OwnData(path, preparation=task.preparation, is_autoencoder=task.is_autoencoder)
    try:
        (x, y), *tests = list(own.unread())
    except (DataError, OSError) as exc:
        yield Finding("data", "problem", " ".join(str(exc).split()))
        return
    scale = scale_of(x)
    values = "tokens" if scale is None else f"x is {scale.text}"
    if scale is None and x.dtype == np.int64:
        values = f"tokens {x.min()} to {x.max()}, {(x == PADDING).mean():.1%} padding (0)"
        if task is not None and isinstance(task.preparation, TextPreparation):
            values += f", {(x == UNKNOWN).mean():.1%} unknown (1)"
    found = f"{len(y)} examples of shape {tuple(x.shape[1:])}, {values}"
    for note in own.notes:
        yield Finding("files", "warning", note)
    yield _labels_finding([y, *(labels for _, labels in tests)], task)
    if task is None:
        hint = "let this device join a run once, and call the doctor again"
        yield Finding("data", "warning", f"{found}; no task to compare with in {cache}", hint)
        return
    spec = task.spec
    for part in (x, *(x_test for x_test, _ in tests)):
        if part.dtype != spec.x_dtype or math.prod(part.shape[1:]) != math.prod(spec.x_shape):
            yield Finding(
                "data",
                "problem",
                f"x must be {spec.x_dtype} of shape {spec.x_shape} for {spec.name}, got "
                f"{part.dtype} of shape {tuple(part.shape[1:])}{same_columns(task.columns)}",
                "prepare x as the data of the run",
            )
            return
        if spec.x_classes and (part.min() < 0 or part.max() >= spec.x_classes):
            yield Finding(
                "data",
                "problem",
                f"tokens must be 0 .. {spec.x_classes - 1}, the vocabulary of {spec.name}, got "
                f"{part.min()} to {part.max()}",
                "number the tokens as the run's data",
            )
            return
    if scale is None or task.scale is None:
        yield Finding("data", "ok", f"{found}, fits {spec.name}")
        return
    what = other_scale(scale, task.scale)
    both = f"{found}; that of {spec.name} {task.scale.text}"
    yield Finding("data", "problem" if what else "ok", both, what)


def _labels_finding(parts: "list[NDArray[Any]]", task: Artifact | None) -> Finding:
    """Return the classes of own data with their numbers of examples, compared with a task.

    Args:
        parts: Labels of training and test examples as they are in the file.
        task: The task; None if it is unknown.
    """
    import numpy as np

    from fairbed.wire.labels import (
        MAX_SHOWN,
        Classes,
        LabelError,
        counted,
        label_text,
        plain_labels,
    )
    from fairbed.wire.preparation import NO_LABEL, TextPreparation

    if task is None:
        y = np.concatenate([plain_labels(part).reshape(-1) for part in parts])
        if y.dtype.kind == "f" and (y != np.round(y)).any():
            return Finding("labels", "ok", f"targets with fractions, {y.min():g} .. {y.max():g}")
        values, counts = np.unique(y, return_counts=True)
        names = map(label_text, values.tolist())
        return Finding("labels", "ok", counted(zip(names, counts, strict=True)))
    classes, found = Classes.of(task), []
    for name, part in zip(("y", "y_test"), parts, strict=False):
        try:
            found.append(classes.targets(part))
        except LabelError as exc:
            problem, what_to_do = exc.args
            return Finding("labels", "problem", f"{name}{problem.removeprefix('y')}", what_to_do)
    targets = np.concatenate([part.reshape(-1) for part in found])
    without = int((targets == NO_LABEL).sum()) if classes.y_shape else 0
    if classes.kind == "regression":
        shown = f"targets of regression, {targets.min():g} .. {targets.max():g}"
        return Finding("labels", "ok", shown)
    if classes.kind == "multi-label":
        shown = f"{classes.count} labels, {(targets == 1).sum():,} given in {len(found[0]):,} rows"
        return Finding("labels", "ok", shown)
    numbers, counts = np.unique(targets[targets >= 0], return_counts=True)
    label: Callable[[int], str] = classes.label
    how = task.preparation
    has_tokens = isinstance(how, TextPreparation) and how.target != "label"
    if isinstance(how, TextPreparation) and has_tokens:
        label = how.token_text
    shown = counted(zip(map(label, numbers.tolist()), counts, strict=True))
    absent = classes.count - len(numbers)
    shown += f"; {len(numbers)} of {classes.count} classes of {task.spec.name}"
    if 0 < absent <= MAX_SHOWN and not has_tokens:
        missing = sorted(set(range(classes.count)) - set(numbers.tolist()))
        shown += f", no example of {', '.join(map(classes.label, missing))}"
    if classes.y_shape:
        shown += f"; {1 - without / targets.size:.1%} of {targets.size:,} positions have a label"
    doubt = classes.doubt(found)
    return Finding("labels", "warning" if doubt else "ok", shown, doubt)


def _newest_task(cache: Path) -> Artifact | None:
    """Return the task that was used last; None if no file of the folder is one."""
    paths = [path for path in cache.rglob("task-*") if re.fullmatch("task-[0-9a-f]{64}", path.name)]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(OSError, DecodeError):
            return decode_artifact(path.read_bytes())
    return None


def memory_finding(n_bytes: int) -> Finding:
    """Return the finding for the memory that the agent may use."""
    found = f"{n_bytes / 2**20:,.0f} MiB"
    if n_bytes < MIN_MEMORY_BYTES:
        return Finding("memory", "problem", found, "use a device with 512 MiB or more")
    if n_bytes < FEW_MEMORY_BYTES:
        return Finding("memory", "warning", found, "small models only; close other programs")
    return Finding("memory", "ok", found)


def disk_finding(folder: Path, n_bytes: int) -> Finding:
    """Return the finding for the free space where tasks and shards are kept."""
    found = f"{n_bytes / 2**20:,.0f} MiB free at {folder}"
    if n_bytes < MIN_DISK_BYTES:
        return Finding("disk", "problem", found, "free some space, or set cache_folder")
    if n_bytes < FEW_DISK_BYTES:
        return Finding("disk", "warning", found, "free some space, or set cache_bytes")
    return Finding("disk", "ok", found)


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _access(path: Path) -> Iterator[Finding]:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        yield Finding(
            "secret",
            "warning",
            f"{path} has mode {mode:04o}, and others can read the password",
            f"chmod 600 {path}",
        )


# Network ------------------------------------------------------------------------------------------


def network_findings(config: AgentConfig) -> Iterator[Finding]:
    """Yield what is known of the broker, or of each node of a cluster, and of the lab."""
    try:
        address = parse_url(config.broker_url)
    except ValueError as exc:
        yield Finding("broker", "problem", str(exc), "run the line of fairbed enroll again")
        return
    if address.other_nodes:
        yield from _nodes(config)
        yield from _lab(config)
        return
    identity = enrolled(config)
    lab_s = None if identity is None else _lab_clock(identity.lab)
    clock = clock_problem(lab_s, time.time())
    if clock is not None:  # first: certificates are judged by it
        yield Finding("clock", "problem", clock)
    is_reached = True
    for found in _reachability(address):
        yield found
        is_reached = found.state != "problem"
        if found.check == "name" and not is_reached:
            return
    yield from _lab(config)
    if is_reached:
        yield anyio.run(_login, config.broker_url, config.name)


def _nodes(config: AgentConfig) -> Iterator[Finding]:
    """Yield one finding for each node; a lost one is no problem while another one serves."""
    nodes = list[tuple[str, list[Finding]]]()
    for i, url in enumerate(node_urls(config.broker_url)):
        found = list(_reachability(parse_url(url)))
        if found[-1].state != "problem":
            found.append(anyio.run(_login, url, config.name))
        nodes.append((f"node {i + 1}", found))
    serves = any(found[-1].state != "problem" for _, found in nodes)
    for check, found in nodes:
        last = found[-1]
        if last.state == "problem":
            state: State = "warning" if serves else "problem"
            yield Finding(check, state, last.found, last.what_to_do)
            continue
        warned = next((one for one in found if one.state == "warning"), last)
        texts = [one.found for one in found if one.check != "name"]
        yield Finding(check, warned.state, ", ".join(texts), warned.what_to_do)


def _lab(config: AgentConfig) -> Iterator[Finding]:
    identity = enrolled(config)
    if identity is not None:
        yield from lab_findings(identity, time.time())
    elif config.lab_url is None:
        yield Finding("lab", "ok", "none: this agent was started without enrolment")


def _reachability(address: Address) -> Iterator[Finding]:
    """Yield name, port and certificate of one broker, up to the first problem."""
    found = _resolved(address.host, address.port)
    yield found
    if found.state != "problem":
        found = _reached("broker", address.host, address.port)
        yield found
    if found.state != "problem" and address.is_tls:
        yield certificate_finding(address)


def _resolved(host: str, port: int) -> Finding:
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as exc:
        return Finding(
            "name",
            "problem",
            f"{host} must resolve to an address, got: {exc.strerror}",
            "check the network; or enrol with the IP address: fairbed enroll NAME --address IP",
        )
    return Finding("name", "ok", f"{host} is {', '.join(sorted(map(str, found)))}")


def _reached(check: str, host: str, port: int) -> Finding:
    started = time.monotonic()
    try:
        with socket.create_connection((host, port), LIMIT_S):
            took_s = time.monotonic() - started
    except ConnectionRefusedError:
        return Finding(
            check,
            "problem",
            f"nothing listens on {host}:{port}",
            "on the lab host: fairbed lab up",
        )
    except OSError as exc:
        reason = "no answer" if isinstance(exc, TimeoutError) else exc.strerror
        return Finding(
            check,
            "problem",
            f"{host}:{port}: {reason}",
            "check the network, and the firewall of the lab host",
        )
    return Finding(check, "ok", f"{host}:{port} answers after {took_s * 1e3:.0f} ms")


def certificate_finding(address: Address) -> Finding:
    """Return the finding for name, CA and dates of the broker's certificate."""
    lab = Lab(address.host, address.port, Path(address.cafile or ""))
    name = address.server_name or address.host
    try:
        context = address.tls_context()
        assert context is not None, "the caller asks for TLS only"
        with (
            socket.create_connection((address.host, address.port), LIMIT_S) as link,
            context.wrap_socket(link, server_hostname=name) as tls,
        ):
            until = str((tls.getpeercert() or {}).get("notAfter", ""))
    except ValueError as exc:
        return Finding("TLS", "problem", str(exc), "run the line of fairbed enroll again")
    except OSError as exc:
        return Finding("TLS", "problem", f"{address.host}: {connection_problem(exc, lab)}")
    import ssl

    days = (ssl.cert_time_to_seconds(until) - time.time()) / 86400.0 if until else 0.0
    if days < CERTIFICATE_DAYS:
        return Finding(
            "TLS", "warning", f"the certificate ends in {days:.0f} days", "restart the lab"
        )
    return Finding("TLS", "ok", f"certificate is for {name}, until {until}")


def lab_findings(identity: Enrolled, now_s: float) -> Iterator[Finding]:
    """Yield clock, identity and versions, as the enrolment server knows them."""
    lab = identity.lab
    lab_s = _lab_clock(lab)
    if lab_s is not None and clock_problem(lab_s, now_s) is None:
        yield Finding("clock", "ok", f"{abs(now_s - lab_s):.0f} s from the lab's")
    try:
        standing = ask_standing(identity, LIMIT_S)
    except LabProblem as exc:
        yield Finding("identity", "problem", str(exc))
        return
    yield standing_finding(identity.name, standing)
    yield version_finding(agent_version(), standing)


def _lab_clock(lab: Lab) -> float | None:
    """Return the time on the lab's clock, Unix seconds, also if its certificate is refused."""
    import http.client
    import ssl

    # The time alone is read: an address without a valid certificate can mislead nothing but it.
    unchecked = ssl._create_unverified_context()
    link = http.client.HTTPSConnection(lab.host, lab.port, timeout=LIMIT_S, context=unchecked)
    try:
        link.request("GET", "/", headers={"Connection": "close"})
        return parsed_date(link.getresponse().getheader("Date"))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        link.close()


def standing_finding(name: str, reply: RenewReply) -> Finding:
    """Return the finding for the standing of an identity."""
    again = f"on the lab host: fairbed enroll {reply.name}, and run its line on this device"
    since = "" if reply.since_s is None else f" on {utc_day(reply.since_s)}"
    match reply.standing:
        case "revoked":
            return Finding("identity", "problem", f"{name} was revoked{since}", again)
        case "expired":
            return Finding("identity", "problem", f"{name} expired{since}", again)
        case "renamed":
            return Finding(
                "identity",
                "warning",
                f"{name} was renamed to {reply.name}",
                "restart the agent, which takes the new name",
            )
        case _:
            return Finding("identity", "ok", f"{name} is valid at the lab {reply.lab}")


def version_finding(own: str, reply: RenewReply) -> Finding:
    """Return the finding for the versions of agent and lab."""
    found = f"agent {own}, lab {reply.version}"
    again = "run the line of fairbed enroll on this device, which installs the lab's version"
    if reply.protocol != PROTOCOL_VERSION:
        if reply.protocol < PROTOCOL_VERSION:
            again = f"upgrade the lab host: pip install 'fairbed=={own}'"
        return Finding(
            "version",
            "problem",
            f"{found}: protocols {PROTOCOL_VERSION} and {reply.protocol} do not fit",
            again,
        )
    if own != reply.version:
        return Finding("version", "warning", f"{found}; the protocols fit", again)
    return Finding("version", "ok", found)


async def _login(url: str, name: str) -> Finding:
    transport = MqttTransport(url, f"fairbed-doctor-{os.urandom(6).hex()}")
    try:
        with anyio.fail_after(LIMIT_S):
            async with transport:
                async for event in transport.events():
                    if isinstance(event, LinkUp):
                        break
    except TransportError as exc:
        return Finding("login", "problem", str(exc))
    except TimeoutError:
        return Finding(
            "login",
            "problem",
            f"{transport.url}: {transport.down_reason or 'no answer'}",
            "see the lines above; on the lab host: fairbed lab status",
        )
    return Finding("login", "ok", f"the broker accepts {name}")


# Sensors, limits, service -------------------------------------------------------------------------


def sensor_findings(sensors: RealSensors) -> Iterator[Finding]:
    """Yield the sensors that were found; each of them is optional."""
    celsius, clock, causes = sensors.temperature_celsius(), sensors.clock_now(), sensors.throttled()
    has = [
        f"temperature {celsius:.0f} °C" if celsius is not None else "no temperature",
        f"clock {clock:.0%} of nominal" if clock is not None else "no clock",
        "no throttling sensor" if causes is None else f"throttled: {', '.join(causes) or 'no'}",
    ]
    board = sensors.board()
    found = ", ".join([*([board] if board else []), *has])
    if causes:
        yield Finding("sensors", "warning", found, "cool the board, or use a stronger power supply")
    else:
        yield Finding("sensors", "ok", found)


def _power(config: AgentConfig) -> Finding:
    """Return the finding for the source of power, which is optional."""
    power = config.power
    try:
        meter = energy_meter(power, MonotonicClock())
    except OSError as exc:
        return Finding("power", "warning", str(exc), "correct [power] in the configuration")
    if power.transfer_w is not None or power.compute_w is not None:
        return Finding("power", "ok", "stated in the configuration")
    source = (
        f"command {power.command[0]}"
        if power.command
        else f"file {power.file}"
        if power.file is not None
        else f"rails {', '.join(power.rails or WHOLE_RAILS)}"
    )
    if meter is None:
        return Finding("power", "ok", "no sensor: energy is not measured ([power] names another)")
    meter.begin(time.monotonic())
    time.sleep(power.interval_s)
    joules = meter.lap("train", power.interval_s)
    meter.end()
    if joules is None:
        return Finding("power", "warning", f"{source}: no reading", "correct [power]")
    return Finding("power", "ok", f"{source}: {joules / power.interval_s:.2f} W")


def limit_findings(root: Path) -> Iterator[Finding]:
    """Yield the limits of the control group of this process, and whether memory can be limited."""
    limit = memory_limit_bytes(root)
    cores = min((quota.cores for quota in cpu_quotas(root)), default=None)
    found = (
        f"processor {'unlimited' if cores is None else f'{cores:g} cores'}, "
        f"memory {'unlimited' if limit is None else f'{limit / 2**20:,.0f} MiB'}"
    )
    if sys.platform == "linux" and not any(True for _ in own_groups(root, "memory")):
        yield Finding(
            "limits",
            "warning",
            f"{found}; the kernel has no memory control group, so MemoryMax has no effect",
            "Raspberry Pi: add cgroup_enable=memory to /boot/firmware/cmdline.txt and restart",
        )
    else:
        yield Finding("limits", "ok", f"{found}, for programs of this shell")


def unit_findings(run: Run) -> Iterator[Finding]:
    """Yield the state of the systemd unit."""
    if not has_systemd():
        yield Finding("service", "ok", "no systemd: start device-agent by other means")
        return
    for scope in ([], ["--user"]):
        try:
            shown = run(
                [
                    "systemctl",
                    *scope,
                    "show",
                    UNIT,
                    "--property=LoadState,ActiveState,SubState,NRestarts,UnitFileState",
                ]
            )
        except (OSError, subprocess.SubprocessError):
            continue
        values = dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)
        if values.get("LoadState") == "loaded":
            yield service_finding(values, " ".join(["systemctl", *scope]), is_user=bool(scope))
            return
    yield Finding(
        "service", "warning", f"no {UNIT}", "run the line of fairbed enroll on this device"
    )


def service_finding(values: dict[str, str], systemctl: str, *, is_user: bool) -> Finding:
    """Return the finding for the unit from the properties that `systemctl show` printed."""
    state = values.get("ActiveState", "unknown")
    restarts = values.get("NRestarts", "0")
    found = f"{UNIT} is {state} ({values.get('SubState', '?')}), restarted {restarts} times"
    log = f"journalctl {'--user ' if is_user else ''}-u {UNIT.removesuffix('.service')}"
    if state != "active":
        return Finding("service", "problem", found, f"see {log}; then {systemctl} restart {UNIT}")
    if values.get("UnitFileState") != "enabled":
        return Finding("service", "warning", found, f"start it at boot: {systemctl} enable {UNIT}")
    if int(restarts) > 3:
        return Finding("service", "warning", found, f"see {log}")
    return Finding("service", "ok", found)
