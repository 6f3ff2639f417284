"""`[notify]`: messages about a run to a person, by a command of this machine or a webhook."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from fairbed.coordinator.policy.config import Section
from fairbed.wire.text import NotText, TOMLDecodeError, text_of, toml_of
from fairbed.wire.transport.address import is_loopback

Occasion: TypeAlias = Literal["end", "failure", "stall", "alert"]

SETTINGS_VARIABLE = "FAIRBED_NOTIFY"
"""Environment variable with the path of a TOML file: `[notify]` of experiments without one."""

ENV, FILE = "env:", "file:"
"""Beginnings of `webhook`: the rest names an environment variable or a file with the address."""


class NotifyError(ValueError):
    """`[notify]` cannot be used on this machine; the message is one line without a secret."""


class NotifyConfig(Section, frozen=True, kw_only=True):
    """`[notify]`: messages about the run to a person; they do not change the run."""

    on: tuple[Occasion, ...] = ("end", "failure", "stall")
    """`end`: the run is done or was stopped; `failure`: it failed, or its process was killed;
    `stall`: it waits for devices for longer than stall_alert_s; `alert`: a condition that needs a
    person begins or ends."""
    stall_alert_s: Annotated[float, Meta(gt=0.0, le=1e7)] = 60.0
    """Wait for devices after which `stall` is sent, seconds of the run's clock."""
    command: tuple[str, ...] = ()
    """Program and arguments, without a shell. `{title}` and `{text}` are replaced; all facts are in
    environment variables, and as JSON on standard input."""
    webhook: str | None = None
    """Where the address is that gets the facts as JSON: `env:NAME` or `file:PATH`. An address is a
    secret, and a copy of the experiment stays in the folder of the run, so it must not be here."""
    plain: bool = False
    """Allow a webhook by `http://` to another machine, where everyone between can read it."""
    timeout_s: Annotated[float, Meta(gt=0.0, le=30.0)] = 10.0
    """Longest time for one message, and longest delay of the end of the run, seconds of this
    machine."""

    def __post_init__(self) -> None:
        if self.webhook is not None and not self.webhook.startswith((ENV, FILE)):
            raise ValueError(
                "webhook must be env:NAME or file:PATH, got something else; put the address into "
                "an environment variable or a file that only you can read"
            )
        if self.command and not self.command[0]:
            raise ValueError('command must begin with a program, got ""; name one')

    @property
    def is_on(self) -> bool:
        """Whether a message has a way and an occasion."""
        return bool(self.on) and bool(self.command or self.webhook)


class NotifySettings(Struct, frozen=True, kw_only=True):
    """`[notify]` with the address of the webhook: not for a file or an argument list."""

    on: tuple[Occasion, ...]
    command: tuple[str, ...]
    url: str | None
    timeout_s: float
    stall_alert_s: float = 60.0


def notify_settings(config: NotifyConfig, environ: Mapping[str, str]) -> NotifySettings | None:
    """Return how to send messages; None if there is nothing to send.

    Args:
        config: `[notify]` of the experiment; without one, the file of `FAIRBED_NOTIFY` counts.
        environ: Environment variables.

    Raises:
        NotifyError: The file, the command or the address cannot be used.
    """
    where = "notify"
    if config == NotifyConfig() and (path := environ.get(SETTINGS_VARIABLE)):
        where, config = f"{SETTINGS_VARIABLE}={path}", _own_config(path)
    if not config.is_on:
        return None
    if config.command and shutil.which(config.command[0], path=environ.get("PATH")) is None:
        raise NotifyError(
            f"{where}: command must begin with a program of this machine, got "
            f"{config.command[0]!r}; install it, or name another"
        )
    url = None if config.webhook is None else _address(config.webhook, where, environ)
    if url is not None and (problem := address_problem(url, allows_plain=config.plain)):
        raise NotifyError(f"{where}: webhook {config.webhook}: {problem}")
    return NotifySettings(
        on=config.on,
        command=config.command,
        url=url,
        timeout_s=config.timeout_s,
        stall_alert_s=config.stall_alert_s,
    )


def address_problem(url: str, *, allows_plain: bool) -> str | None:
    """Return why a webhook cannot have an address, without the address; None if it can."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return "the address is not valid; copy it again"
    if not url.isprintable() or " " in url or parts.scheme not in ("https", "http") or not host:
        return "the address must begin with https:// and a host, got something else"
    if parts.username is not None or parts.password is not None:
        return "the address must have no user or password before the host; use its path or query"
    if parts.scheme == "http" and not (allows_plain or is_loopback(host)):
        return (
            f"the address must begin with https://, got http:// to {host}, where everyone between "
            "can read it; use https://, or set notify.plain = true"
        )
    return None


def _own_config(path: str) -> NotifyConfig:
    try:
        document: dict[str, Any] = toml_of(text_of(Path(path).expanduser().read_bytes()))
        return msgspec.convert(document, NotifyConfig)
    except OSError as exc:
        problem = f"must be a file that can be read: {exc.strerror or exc}"
    except NotText as exc:
        problem = str(exc)
    except TOMLDecodeError as exc:
        problem = f"not valid TOML: {exc}"
    except msgspec.ValidationError as exc:
        problem = str(exc).replace("`", "")
    raise NotifyError(f"{SETTINGS_VARIABLE}={path}: {problem}")


def _address(webhook: str, where: str, environ: Mapping[str, str]) -> str:
    if webhook.startswith(ENV):
        name = webhook.removeprefix(ENV)
        found = environ.get(name, "").strip()
        if not found:
            raise NotifyError(
                f"{where}: webhook must name an environment variable with an address, got {name}, "
                f"which is not set; export {name}=https://..."
            )
        return found
    path = webhook.removeprefix(FILE)
    try:
        found = text_of(Path(path).expanduser().read_bytes()).strip()
    except (OSError, NotText) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise NotifyError(
            f"{where}: webhook must name a file with an address, got {path}: {why}; write the "
            "address into it"
        ) from exc
    if not found:
        raise NotifyError(f"{where}: webhook must name a file with an address, got {path}: empty")
    return found
