"""Configuration of an agent by flags and a TOML file; all defaults are defined here."""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from fairbed.device_agent.availability import OwnerSchedule, parse_hours
from fairbed.device_agent.errors import ConfigError
from fairbed.wire.enrolment import SECRET_PATTERN
from fairbed.wire.messages import MAX_WATTS, NAME_PATTERN, DeviceName, is_device_name
from fairbed.wire.text import (
    NotText,
    TOMLDecodeError,
    as_it_must_be,
    kinds_in_words,
    text_of,
    toml_of,
)

SentLevel: TypeAlias = Literal["off", "error", "warning", "info"]
PositiveSeconds = Annotated[float, Meta(gt=0.0, le=1e6)]


class Timeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[timeouts]`: waiting times for broker and coordinator, seconds."""

    hello_s: PositiveSeconds = 2.0
    """Interval of `Hello` until a `Welcome` arrives."""
    refused_s: PositiveSeconds = 15.0
    """Delay of the next `Hello` after a refusal that is not final."""
    resend_s: PositiveSeconds = 5.0
    """Interval of `Offer` or `UploadDone` until the coordinator replies."""
    queue_s: PositiveSeconds = 3600.0
    """Longest wait for a grant, while other devices upload."""
    outage_s: PositiveSeconds = 600.0
    """Extension of a deadline while the coordinator or the broker is offline."""
    probe_s: PositiveSeconds = 15.0
    """Longest wait for the reply to a link probe; 64 KB take this long at 35 kbit/s."""
    prepare_s: PositiveSeconds = 600.0
    """Longest time to download and check task and data."""


Watts = Annotated[float, Meta(ge=0.0, le=MAX_WATTS)]


class PowerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[power]`: source of the device's power; by default the sensor of a Jetson board."""

    rails: tuple[str, ...] = ()
    """Rails of INA3221 sensors to add; empty is the rail of the whole module, if there is one."""
    file: str | None = None
    """A file that begins with the power of the whole device."""
    command: tuple[str, ...] = ()
    """A program and its arguments; it prints the power of the whole device and ends."""
    unit: Literal["W", "mW", "uW"] = "W"
    """Unit of `file` and `command`."""
    interval_s: Annotated[float, Meta(ge=0.05, le=3600.0)] = 0.5
    """Interval of readings during a round."""
    transfer_w: Watts | None = None
    """Power during download and upload, without a sensor."""
    compute_w: Watts | None = None
    """Power during the other phases, without a sensor."""

    def __post_init__(self) -> None:
        stated = self.transfer_w is not None or self.compute_w is not None
        given = [bool(self.rails), self.file is not None, bool(self.command), stated]
        if sum(given) > 1:
            raise ValueError(
                "must name one source: rails, file, command, or transfer_w and compute_w"
            )


class OwnerPrivacy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[privacy]`: what the owner demands of every run."""

    min_noise_multiplier: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    """Least `privacy.noise_multiplier` of a run; with less noise the device refuses to train. Above
    0 no loss and no score leaves it. 0 accepts every run."""


ClientName: TypeAlias = Annotated[str, Meta(pattern=NAME_PATTERN)]


MAX_PROCESSES = 512
"""Of a client, unless its owner sets another number; threads do not count."""


class AllowedClient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[clients.NAME]`: a client whose code the owner allows to run on this device."""

    folder: str
    """Folder with its code, which must be that of the run."""
    python: str | None = None
    """Interpreter that runs it, with the packages that it needs; None is that of the agent."""
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None = None
    """Hash of the folder that the owner has examined: another one is refused. None takes the folder
    as it is now."""
    data: str | None = None
    """File or folder with data of this device for this client, its `context.folder`; None without
    any."""
    processes: Annotated[int, Meta(ge=1, le=100_000)] = MAX_PROCESSES
    """Most processes that it may have at once: more are a fork bomb, and are killed with it."""


class AgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of one agent."""

    broker_url: str
    """`mqtt://[user[:password]@]host[:port]` or `mqtts://...`."""
    name: DeviceName
    tenant: DeviceName = "main"
    lab_url: str | None = None
    """Enrolment server of the lab, `https://host:port`: the agent asks there why the broker refuses
    it. `device-agent join` writes it; None without a lab."""
    task_key: Annotated[str, Meta(pattern=SECRET_PATTERN)] | None = None
    """Key of this device, by which the coordinator signs its messages; those without a valid
    signature are ignored. `device-agent join` writes it; None takes unsigned messages, too."""
    data: str | None = None
    """An `.npz` file with arrays x and y, or a folder of pictures; None requests a shard from the
    coordinator."""
    cache_folder: str | None = None
    """Folder for tasks and shards; None is the platform's cache folder."""
    base_folder: str | None = None
    """Folder for frozen parts of models, which agents on one machine may share; None is a folder
    in the cache."""
    base_links: str | None = None
    """Folder of emulated devices with one file of each frozen part: a device that has downloaded
    its own keeps a link to it, so that all share its memory. None keeps another file."""
    base: str | None = None
    """A file with the frozen part of a model, put here by hand, so that it is not downloaded; one
    with another hash is ignored."""
    state_folder: str | None = None
    """Folder for what must outlast a restart, such as the personal model; None is the platform's
    folder for state."""
    cache_bytes: Annotated[int, Meta(ge=0)] = 4 * 1024**3
    """Size limit of the cache; the least recently used file is removed first."""
    local_training: tuple[str, ...] = ()
    """Local rules that a coordinator may ask for, as `package.module:Name`; their code runs on
    this device. Installed ones need no entry here."""
    allow_models: tuple[str, ...] = ()
    """Python modules with torch models that a coordinator may ask for, as `package.module`; their
    code runs on this device."""
    clients: Annotated[dict[ClientName, AllowedClient], Meta(max_length=32)] = {}
    """Clients that a coordinator may ask for, by name; their code runs on this device."""
    telemetry_s: PositiveSeconds = 1.0
    """Interval of contexts."""
    available_hours: tuple[str, ...] = ()
    """Hours at which the device takes part, local time: `22:00-06:00`; empty means always."""
    only_charging: bool = False
    """Take part only while a charger is plugged in."""
    once: bool = False
    """Stop when the run is over instead of waiting for the next coordinator."""
    engine_threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Threads of one training step."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    send_log: SentLevel = "info"
    """Least level of the agent's log lines that the coordinator gets; `off`: it gets none."""
    timeouts: Timeouts = Timeouts()
    power: PowerConfig = PowerConfig()
    privacy: OwnerPrivacy = OwnerPrivacy()

    def owner(self) -> OwnerSchedule:
        """Return the owner's rules for participation.

        Raises:
            ConfigError: The hours are malformed.
        """
        try:
            hours = tuple(parse_hours(text) for text in self.available_hours)
        except ValueError as exc:
            raise ConfigError(f"available_hours: {exc}") from None
        return OwnerSchedule(hours, self.only_charging)

    @property
    def cache_path(self) -> Path:
        """Folder of the cache, which may not exist yet."""
        if self.cache_folder is not None:
            return Path(self.cache_folder).expanduser()
        return default_cache_folder() / self.tenant / self.name

    @property
    def base_folder_path(self) -> Path | None:
        """Folder of frozen parts of models; None: one in the cache."""
        return None if self.base_folder is None else Path(self.base_folder).expanduser()

    @property
    def base_links_path(self) -> Path | None:
        """Folder with one file of equal bases; None: there is none."""
        return None if self.base_links is None else Path(self.base_links)

    @property
    def base_path(self) -> Path | None:
        """File with the frozen part of a model; None: there is none."""
        return None if self.base is None else Path(self.base).expanduser()

    @property
    def state_path(self) -> Path:
        """Folder of the state, which may not exist yet."""
        if self.state_folder is not None:
            return Path(self.state_folder).expanduser()
        return default_state_folder() / self.tenant / self.name

    @property
    def data_path(self) -> Path | None:
        """File of the device's own data, or None."""
        return None if self.data is None else Path(self.data).expanduser()


def default_cache_folder() -> Path:
    """Return the platform's folder for caches."""
    if "XDG_CACHE_HOME" in os.environ:
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "fairbed" / "agent"


def default_state_folder() -> Path:
    """Return the platform's folder for state."""
    if "XDG_STATE_HOME" in os.environ:
        base = Path(os.environ["XDG_STATE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path.home() / ".local" / "state"
    return base / "fairbed" / "agent"


def load_config(path: Path | None, overrides: dict[str, object]) -> AgentConfig:
    """Return the configuration in `path` (if any), overridden by flags.

    Args:
        path: TOML file with the keys of `AgentConfig`; None without a file.
        overrides: Values of the given flags, by key.

    Raises:
        ConfigError: The file cannot be read, or a key or value breaks a rule.
    """
    where = "flags" if path is None else str(path)
    values: dict[str, object] = {}
    if path is not None:
        try:
            values = toml_of(text_of(path.read_bytes()))
        except OSError as exc:
            raise ConfigError(
                f"{where}: must be a readable TOML file, got: {exc.strerror or exc}"
            ) from exc
        except NotText as exc:
            raise ConfigError(f"{where}: {exc}") from exc
        except TOMLDecodeError as exc:
            raise ConfigError(f"{where}: must be a readable TOML file, {_one_line(exc)}") from exc
    unknown = next((key for key in values if key not in AgentConfig.__struct_fields__), None)
    if unknown is not None:  # before a missing key, whose name may be misspelt
        raise ConfigError(f"{where}: {_unknown(unknown, AgentConfig)}")
    values.update(overrides)
    for key, flag in (("broker_url", "--broker URL"), ("name", "--name NAME")):
        if key not in values:
            advice = f"give {flag} or put it into the file"
            own = enrolled_config() if path is None else None
            if own is not None:
                advice = f"this device is enrolled: give --config {own}"
            raise ConfigError(f"{where}: {key} is missing; {advice}")
    for key in ("name", "tenant"):
        if key in values and not is_device_name(str(values[key])):
            raise ConfigError(
                f"{where}: {key} must be 1 to 32 of a-z, 0-9 and hyphen, got {values[key]!r}"
            )
    try:
        return msgspec.convert(values, AgentConfig)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{where}: {_explained(exc, values)}") from exc


def allowed_clients(flags: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the values of `--allow-client`, as the key `clients` has them.

    Raises:
        ConfigError: A value is not NAME=FOLDER or NAME=FOLDER,PYTHON.
    """
    found = dict[str, dict[str, str]]()
    for flag in flags:
        name, is_pair, rest = flag.partition("=")
        folder, _, python = rest.partition(",")
        if not is_pair or not folder or re.fullmatch(NAME_PATTERN, name) is None:
            raise ConfigError(
                "--allow-client: must be NAME=FOLDER or NAME=FOLDER,PYTHON, and the name 1 to 32 "
                f"of a-z, 0-9 and hyphen, got {flag!r}"
            )
        found[name] = {"folder": folder, **({"python": python} if python else {})}
    return found


def enrolled_config() -> Path | None:
    """Return the configuration that `device-agent join` wrote on this machine, if there is one."""
    base = os.environ.get("XDG_CONFIG_HOME")
    folders = (Path(base) if base else Path.home() / ".config", Path("/var/lib"))
    found = (folder / "fairbed" / "agent.toml" for folder in folders)
    try:
        return next((path for path in found if path.is_file()), None)
    except OSError:  # of the system's folder, for another user
        return None


def with_password(config: AgentConfig, password: str) -> AgentConfig:
    """Return `config` with the broker's password in its URL, unless the URL has one.

    Raises:
        ConfigError: The URL has no user for the password.
    """
    from fairbed.wire.transport import address  # imports ssl; `--help` does without

    try:
        url = address.with_password(config.broker_url, password)
    except ValueError as exc:
        raise ConfigError(f"broker_url: {exc}") from exc
    return msgspec.structs.replace(config, broker_url=url)


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())


_RULE = re.compile(r"^(?P<rule>.*?)(?:, got `(?P<got>[^`]*)`)?(?: - at `\$\.(?P<key>[^`]*)`)?$")
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>[^`]*)`")


def _explained(exc: msgspec.ValidationError, values: Mapping[str, object]) -> str:
    """Return the decoder's error as one line: key, rule, value and what to do.

    Args:
        exc: The error.
        values: What was decoded.
    """
    text = _one_line(exc)
    if unknown := _UNKNOWN_FIELD.search(text):
        if text.endswith("`$.power`"):
            return _unknown(unknown["name"], PowerConfig, "power.")
        if "`$.clients[" in text:
            return _unknown(unknown["name"], AllowedClient, "clients.NAME.")
        if text.endswith("`$.privacy`"):
            return _unknown(unknown["name"], OwnerPrivacy, "privacy.")
        return _unknown(unknown["name"], Timeouts, "timeouts.")
    match = _RULE.match(text)
    if match is None or match["key"] is None:
        return text
    key, value = match["key"], _value_at(values, match["key"])
    rule = kinds_in_words(match["rule"].replace("Expected", "must be").replace("`", ""))
    got = repr(value)[:60] if isinstance(value, str | int | float) else match["got"] or ""
    advice = as_it_must_be(key, rule, value) if match["got"] else ""
    return f"{key}: {rule}{f', got {got}' if got else ''}{advice}"


def _value_at(values: Mapping[str, object], key: str) -> object:
    found: object = values
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _unknown(name: str, table: type[Struct], prefix: str = "") -> str:
    """Return the error of a key that a table does not have, with the nearest one."""
    import difflib  # only for an error; an agent has little memory

    keys = table.__struct_fields__
    close = difflib.get_close_matches(name, keys, n=1)
    hint = f"did you mean {prefix}{close[0]}? " if close else ""
    return f"{prefix}{name}: unknown key; {hint}valid keys are {', '.join(keys)}"
