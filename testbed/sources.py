"""The source files of a user's parts: their modules, and the user's modules that these import.

The files are found by reading, not by importing, so that a process knows them before and after it
imports a part, and a part that needs torch is described without it. An import counts wherever it
is written: in a function, below a condition, relative, or as a text of `import_module`. A module
that computes the name of an import depends on all modules beside it.
"""

import ast
import hashlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Protocol, cast

import fairbed
from fairbed.wire.plugins import is_of_user

MAIN = "__main__"
"""The module of a program, such as a script that registers a part."""

UNREADABLE = "unreadable"
"""Instead of the hash of a part whose source cannot be read, as of one typed into a prompt."""


class _Loader(Protocol):
    def get_data(self, path: str) -> bytes: ...


@dataclass(slots=True)
class _Search:
    """Finds the files of modules and of what they import."""

    roots: frozenset[str]
    """Top-level names that count although they may be installed packages."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 by name: the path below the folder from which it is imported."""
    paths: dict[str, str] = field(default_factory=dict)
    """The file of each name."""
    _specs: dict[str, ModuleSpec | None] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def add(self, module: str) -> None:
        """Add a module, the packages around it, and what they import."""
        waiting = [module]
        while waiting:
            name = waiting.pop()
            if name in self._seen:
                continue
            self._seen.add(name)
            head, _, _ = name.rpartition(".")
            waiting += [head] if head else []
            spec = self._spec(name)
            if spec is not None and spec.has_location and self._is_own(name, spec):
                waiting += self._read(name, spec)

    def _read(self, name: str, spec: ModuleSpec) -> Iterable[str]:
        """Add the file of a module; return the names that it imports."""
        assert spec.origin is not None
        try:
            content = cast(_Loader, spec.loader).get_data(spec.origin)
        except (AttributeError, OSError):  # it cannot be imported either
            return ()
        is_package = spec.submodule_search_locations is not None
        folder = name if is_package else name.rpartition(".")[0]
        shown = "/".join(filter(None, (folder.replace(".", "/"), os.path.basename(spec.origin))))
        self.files[shown] = hashlib.sha256(content).hexdigest()
        self.paths[shown] = spec.origin
        if not spec.origin.endswith(".py"):
            return ()
        beside = spec.submodule_search_locations or [os.path.dirname(spec.origin)]
        return imports_in(content, folder, lambda: _names_in(beside, folder))

    def _spec(self, name: str) -> ModuleSpec | None:
        """Return where a module is, without executing anything; None if there is none."""
        if name not in self._specs:
            self._specs[name] = self._find(name)
        return self._specs[name]

    def _find(self, name: str) -> ModuleSpec | None:
        parent, _, _ = name.rpartition(".")
        spec: ModuleSpec | None = None
        if not parent:
            with suppress(ImportError, ValueError):  # a module without a spec
                spec = importlib.util.find_spec(name)
        elif (around := self._spec(parent)) is not None and around.submodule_search_locations:
            spec = PathFinder.find_spec(name, list(around.submodule_search_locations))
        return spec

    def _is_own(self, name: str, spec: ModuleSpec) -> bool:
        """Return whether a module is of the user, or of a plug-in that is an installed package."""
        top = name.partition(".")[0]
        if top in self.roots and top != fairbed.__name__:
            return True
        return spec.origin is not None and is_of_user(spec.origin)


def _names_in(folders: Iterable[str], package: str) -> list[str]:
    names = [found.name for found in pkgutil.iter_modules(list(folders))]
    return [f"{package}.{name}" if package else name for name in names]


def imports_in(source: bytes, package: str, beside: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names of modules that a source may import; some may be no modules.

    Args:
        source: Its text.
        package: The package in which it is; empty for a module outside of any.
        beside: Returns the modules beside it, for an import of a computed name.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # the import reports it
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else []
        elif isinstance(node, ast.Call) and _is_import(node.func):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found += filter(None, [_absolute(name.value, package)])
            else:
                found += beside()
    return found


def _is_import(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _absolute(name: str, package: str) -> str:
    """Return the absolute name of a module; empty if a relative one leaves its package."""
    try:
        return importlib.util.resolve_name(name, package)
    except (ImportError, ValueError):
        return ""


@dataclass(frozen=True, slots=True)
class Sources:
    """Source files of some parts."""

    files: Mapping[str, str]
    """SHA-256 by name, such as `cats.py` or `package/module.py`."""
    paths: Mapping[str, str]
    """The file of each name; a part of a program has none."""


def sources_of(modules: Iterable[str], registered: Iterable[Callable[..., Any]] = ()) -> Sources:
    """Return the source files of modules, and of factories that this program registered."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as the import of a part does
    importlib.invalidate_caches()
    names, own = list(modules), dict[str, str]()
    for factory in registered:
        module = getattr(factory, "__module__", None) or MAIN  # None: made by `exec`
        if module != MAIN:
            names.append(module)
            continue
        label, source = _part_of_program(factory)
        own[label] = UNREADABLE if source is None else hashlib.sha256(source.encode()).hexdigest()
        names += [] if source is None else _imported_by_program(source)
    search = _Search(frozenset(name.partition(".")[0] for name in names))
    for name in names:
        search.add(name)
    return Sources(dict(sorted((search.files | own).items())), search.paths)


def _part_of_program(factory: Callable[..., Any]) -> tuple[str, str | None]:
    """Return name and source of a factory of the program, with all definitions that it uses.

    Other lines of the program, such as the call of `fairbed.compare`, do not count.
    """
    label = f"{MAIN}.{getattr(factory, '__qualname__', type(factory).__name__)}"
    file = getattr(sys.modules.get(MAIN), "__file__", None)
    with suppress(OSError, TypeError, SyntaxError, ValueError):
        if file is None:  # a cell of a notebook
            return label, inspect.getsource(factory)
        text = Path(file).read_text(encoding="utf-8")
        name = getattr(factory, "__qualname__", "").partition(".")[0]
        return label, "\n".join(_definitions(text, name)) or text
    return label, None


def _definitions(text: str, name: str) -> Iterator[str]:
    """Yield the statements of a program that define a name or what its definition uses."""
    statements = ast.parse(text).body
    wanted, used = {name}, set[int]()
    while True:
        new = {
            number
            for number, one in enumerate(statements)
            if number not in used and wanted & _bound_by(one)
        }
        if not new:
            break
        used |= new
        for number in new:
            wanted |= {n.id for n in ast.walk(statements[number]) if isinstance(n, ast.Name)}
    yield from (ast.get_source_segment(text, statements[number]) or "" for number in sorted(used))


def _bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a program defines, imports among them."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    found = set[str]()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def _imported_by_program(source: str) -> list[str]:
    return imports_in(source.encode(), "", list)
