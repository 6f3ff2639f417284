"""A Flower app on disk: its two components, its configuration, what it needs.

The code of the app is parsed and not run, and Flower is not needed.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fairbed.testbed.errors import UsageError
from fairbed.wire.client_folder import ClientFolderError, files_of
from fairbed.wire.printable import one_line
from fairbed.wire.text import NotText, TOMLDecodeError, toml_of

OLDEST, NEWEST = (1, 21), (1, 42)
"""Versions of flwr: the first with records, messages and strategies of `flwr.serverapp`, and the
last with which the tests have run. A later one is tried, with a remark."""

DEFAULT_REQUIREMENT = f"flwr>={OLDEST[0]}.{OLDEST[1]},<2"

MAX_SOURCE_BYTES = 1 << 20
MAX_CONFIG = 256

ConfigValue: TypeAlias = bool | int | float | str
Config: TypeAlias = dict[str, ConfigValue]

_LEGACY = frozenset({"start_client", "start_numpy_client", "start_server", "start_simulation"})

_SECURE = frozenset(
    {"SecAggPlusWorkflow", "SecAggWorkflow", "secagg_mod", "secaggplus_mod", "secaggplus_base_mod"}
)

_COMPONENTS = {"serverapp": "ServerApp", "clientapp": "ClientApp"}

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^]]*\])?\s*([^;]*)")
_CLAUSE = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*v?([0-9][0-9a-zA-Z.+*-]*)\s*\Z")


@dataclass(frozen=True, slots=True)
class FlowerApp:
    """A Flower app, as its files state it."""

    folder: Path
    name: str
    server: str
    """`package.module:attribute` of the ServerApp."""
    client: str
    """The same of the ClientApp."""
    config: Config
    """The run's configuration, with nested keys joined by dots, after the overrides."""
    dependencies: tuple[str, ...] = ()
    """What `[project].dependencies` names, flwr among them."""

    @property
    def requirement(self) -> str:
        """What the app needs of flwr, such as `flwr>=1.21,<2`; it may name no version."""
        of_flwr = (x for x in self.dependencies if _name_of(x) == "flwr")
        return next(of_flwr, DEFAULT_REQUIREMENT)

    @property
    def packages(self) -> tuple[str, ...]:
        """Names of the packages that it needs everywhere."""
        return tuple(_name_of(each) for each in self.dependencies if ";" not in each)


def read_app(path: Path, config: Mapping[str, Any] | None = None) -> FlowerApp:
    """Return the app at a path.

    Args:
        path: Its folder, its `pyproject.toml`, or a module with a ServerApp and a ClientApp.
        config: Values that replace those of its configuration; nested tables, or keys with dots.

    Raises:
        UsageError: There is no app, or it cannot run here; the message is one line.
    """
    path = path.absolute()
    if path.name == "pyproject.toml":
        path = path.parent
    if not path.exists():
        raise UsageError(f"{path}: must be a Flower app, got no such file; correct the path")
    if path.is_file():
        app = _of_modules(path.parent, [path], path)
    else:
        table = _pyproject(path)
        app = _of_modules(path, _modules(path), path) if table is None else _of_table(path, table)
    _refuse_secure_aggregation(app.folder)
    found = _overridden(app.config, _flat(config or {}, "flower.config"))
    return FlowerApp(app.folder, app.name, app.server, app.client, found, app.dependencies)


def check_version(app: FlowerApp, version: str) -> str:
    """Return a remark about a version of flwr, empty if there is none.

    Raises:
        UsageError: The version is too old, or not one that the app names.
    """
    found = _numbers(version)
    if found[:2] < OLDEST:
        raise UsageError(
            f"flower: needs flwr {_dotted(OLDEST)} or later, got {version}; install a later one, "
            "or make an environment with: fairbed flower setup"
        )
    if not satisfies(version, app.requirement):
        raise UsageError(
            f"{app.folder}: the app needs {app.requirement}, got flwr {version}; make an "
            f"environment with: fairbed flower setup {app.folder}"
        )
    if found[:2] > NEWEST:
        return f"flwr {version} is later than {_dotted(NEWEST)}, the last one that was tried"
    return ""


def satisfies(version: str, requirement: str) -> bool:
    """Return whether a version is one that a requirement names; unknown clauses are not checked."""
    match = _REQUIREMENT.match(requirement)
    clauses = (match[3] if match else "").strip().strip("()").split(",")
    found = _numbers(version)
    for clause in clauses:
        parsed = _CLAUSE.match(clause)
        if parsed is None:
            continue
        operator, text = parsed.groups()
        is_any = text.endswith(".*")
        wanted = _numbers(text.removesuffix(".*"))
        size = max(len(found), len(wanted))
        a, b = ((*x, *(0,) * (size - len(x))) for x in (found, wanted))
        is_equal = found[: len(wanted)] == wanted if is_any else a == b
        if operator == "~=":
            holds = a >= b and found[: len(wanted) - 1] == wanted[:-1]
        else:
            holds = {
                "==": is_equal,
                "===": is_equal,
                "!=": not is_equal,
                "<=": a <= b,
                ">=": a >= b,
                "<": a < b,
                ">": a > b,
            }[operator]
        if not holds:
            return False
    return True


# Folders with `[tool.flwr.app]`.


def _pyproject(folder: Path) -> Mapping[str, Any] | None:
    """Return the document with `[tool.flwr.app]`; None if there is none."""
    path = folder / "pyproject.toml"
    if not path.is_file():
        return None
    try:
        found = toml_of(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotText, TOMLDecodeError) as exc:
        raise UsageError(f"{path}: must be TOML, got {one_line(str(exc), 200)}") from exc
    return found if _is_app(found) else None


def _is_app(document: Mapping[str, Any]) -> bool:
    return isinstance(_at(document, "tool", "flwr", "app"), Mapping)


def _at(document: Any, *keys: str) -> Any:
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _of_table(folder: Path, document: Mapping[str, Any]) -> FlowerApp:
    where = folder / "pyproject.toml"
    components = _at(document, "tool", "flwr", "app", "components")
    if not isinstance(components, Mapping):
        raise UsageError(
            f"{where}: must have [tool.flwr.app.components] with serverapp and clientapp, got none"
        )
    if "agentapp" in components:
        raise UsageError(
            f"{where}: must have a serverapp and a clientapp, got an agentapp, whose messages are "
            "no rounds; run it with flwr"
        )
    found = {}
    for key, kind in _COMPONENTS.items():
        if key not in components:
            raise UsageError(
                f"{where}: [tool.flwr.app.components] must have {key}, got none; add "
                f'{key} = "package.module:app", which names the {kind}'
            )
        found[key] = _checked(folder, where, key, components[key])
    config = _flat(_at(document, "tool", "flwr", "app", "config") or {}, f"{where}: config")
    listed = _at(document, "project", "dependencies") or []
    is_list = isinstance(listed, list) and all(isinstance(each, str) for each in listed)
    name = _at(document, "project", "name")
    return FlowerApp(
        folder=folder,
        name=one_line(name, 64) if isinstance(name, str) else folder.name,
        server=found["serverapp"],
        client=found["clientapp"],
        config=config,
        dependencies=tuple(listed) if is_list else (),
    )


def _checked(folder: Path, where: Path, key: str, path: Any) -> str:
    """Return a component as `module:attribute`, whose module is in the folder, if it is its own."""
    module, _, attribute = str(path).partition(":")
    if not isinstance(path, str) or not _is_dotted(module) or not _is_dotted(attribute):
        raise UsageError(
            f'{where}: {key} must be "package.module:attribute", got {one_line(repr(path), 80)}'
        )
    place = folder.joinpath(*module.split("."))
    is_own = folder.joinpath(module.partition(".")[0]).is_dir() or "." not in module
    if is_own and not place.with_suffix(".py").is_file() and not (place / "__init__.py").is_file():
        raise UsageError(
            f"{where}: {key} must name a module in {folder}, got {module}, which is not there; "
            "correct its name"
        )
    return path


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


# Folders and modules without it.


def _modules(folder: Path) -> list[Path]:
    try:
        return [folder / each for each in files_of(folder) if each.suffix == ".py"]
    except ClientFolderError as exc:
        raise UsageError(str(exc)) from exc


def _of_modules(folder: Path, modules: list[Path], path: Path) -> FlowerApp:
    """Return the app whose two components are made in modules, at their top level."""
    found: dict[str, list[tuple[Path, str]]] = {kind: [] for kind in _COMPONENTS.values()}
    legacy: list[tuple[Path, str]] = []
    for module in modules:
        for kind, name in _made_in(module):
            found.get(kind, legacy).append((module, name))
    if not any(found.values()):
        apps = _apps_below(folder) if path.is_dir() else []
        if apps:
            names = ", ".join(str(each.relative_to(folder)) for each in apps[:4])
            count = "a folder above an app" if len(apps) == 1 else f"one above {len(apps)} apps"
            raise UsageError(f"{path}: must be one Flower app, got {count} ({names}); name the one")
        if legacy:
            module, name = legacy[0]
            raise UsageError(
                f"{module}: must be a Flower app, got a script with {name}(); write "
                "app = ClientApp(client_fn=...) and app = ServerApp(server_fn=...), and name both "
                "in [tool.flwr.app.components] of a pyproject.toml"
            )
        raise UsageError(
            f"{path}: must be a Flower app, got neither a pyproject.toml with [tool.flwr.app] nor "
            "a module with a ServerApp and a ClientApp"
        )
    for kind, made in found.items():
        if len(made) > 1:
            names = ", ".join(f"{module.name}:{name}" for module, name in made[:4])
            raise UsageError(
                f"{path}: must have one {kind}, got {len(made)} ({names}); name one in "
                "[tool.flwr.app.components] of a pyproject.toml"
            )
        if not made:
            raise UsageError(f"{path}: must have a ServerApp and a ClientApp, got no {kind}")
    server, client = (
        f"{'.'.join(module.relative_to(folder).with_suffix('').parts)}:{name}"
        for made in found.values()
        for module, name in made
    )
    return FlowerApp(folder, path.stem if path.is_file() else folder.name, server, client, {})


def _apps_below(folder: Path) -> list[Path]:
    below = (each.parent for each in sorted(folder.glob("*/pyproject.toml")))
    return [each for each in below if _pyproject(each) is not None]


def _made_in(module: Path) -> Iterator[tuple[str, str]]:
    """Yield the components that a module makes, and the functions of the old API that it calls."""
    tree = _parsed(module)
    for node in tree.body:
        value = getattr(node, "value", None)
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(value, ast.Call):
            continue
        called = _last_name(value.func)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if called in _COMPONENTS.values() and isinstance(target, ast.Name):
                yield called, target.id
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and (name := _last_name(each.func)) in _LEGACY:
            yield "legacy", name


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _parsed(module: Path) -> ast.Module:
    try:
        if module.stat().st_size > MAX_SOURCE_BYTES:
            return ast.Module([], [])
        return ast.parse(module.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])  # its import states what is wrong


def _refuse_secure_aggregation(folder: Path) -> None:
    for module in _modules(folder):
        for node in ast.walk(_parsed(module)):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.Attribute):
                names = [node.attr]
            for name in _SECURE.intersection(names):
                raise UsageError(
                    f"{module}: must do without secure aggregation, got {name}, whose masked "
                    "updates need several stages in a round; remove it"
                )


# The configuration.


def _flat(table: Any, where: str, prefix: str = "") -> Config:
    """Return a table with nested keys joined by dots, as Flower has it."""
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: must be a table, got {type(table).__name__}")
    found: Config = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flat(value, where, f"{name}.")
        elif isinstance(value, (bool, int, float, str)):
            found[name] = value
        else:
            raise UsageError(
                f"{where}.{name}: must be a number, a text, true or false, got "
                f"{type(value).__name__}"
            )
    if len(found) > MAX_CONFIG:
        raise UsageError(f"{where}: must have at most {MAX_CONFIG} keys, got {len(found)}")
    return found


def _overridden(config: Config, changes: Config) -> Config:
    found = dict(config)
    for key, value in changes.items():
        if key not in config:
            known = ", ".join(sorted(config)) or "none"
            raise UsageError(
                f"flower.config.{key}: must be a key of the app's configuration, got another one; "
                f"its keys: {one_line(known, 300)}"
            )
        found[key] = _as(config[key], value, key)
    return found


def _as(default: ConfigValue, value: ConfigValue, key: str) -> ConfigValue:
    """Return a value of the type of its default; a whole number stays one, as in Flower."""
    if isinstance(default, str) and not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        fits, wanted = is_number and isinstance(value, int), "a whole number"
    elif isinstance(default, float):
        fits, wanted = is_number, "a number"
    else:
        fits, wanted = True, "a text"
    if not fits:
        raise UsageError(f"flower.config.{key}: must be {wanted}, got {one_line(repr(value), 60)}")
    return value


# Versions.


def _name_of(requirement: str) -> str:
    match = _REQUIREMENT.match(requirement)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; what follows them, such as `rc1`, is left out."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else (0,)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
