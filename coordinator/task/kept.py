"""Keeps exported tasks in the user's cache folder, by a hash of all that an export depends on.

The hash has the code that a module can reach, as Python compiled it, with the values of globals,
closures and attributes; all tensors of the module and of its twin; the source files of all modules
of the user that are loaded; shapes, kind and range of x; the versions of the libraries and the
sources of the exporter. What cannot be read in this way, such as a file that `forward()` opens, is
a reason to keep nothing: an export that is made again costs seconds, a wrong one costs a study.
"""

import dis
import enum
import functools
import hashlib
import logging
import os
import platform
import struct
import sys
import sysconfig
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from fairbed.coordinator.task.selfcheck import ExportFigures
from fairbed.wire.artifact import Artifact, decode_artifact, encode_artifact
from fairbed.wire.errors import DecodeError
from fairbed.wire.graphs import check_graph

_log = logging.getLogger("coordinator")

MAX_BYTES = 512 << 20
"""Limit of the cache; the exports that were not used for the longest time go first."""

SUFFIX = ".export"

_STEADY = frozenset(
    (
        *("abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum"),
        *("functools", "itertools", "math", "numbers", "numpy", "operator", "torch", "types"),
        *("typing", "warnings", "__future__"),
    )
)
"""Packages whose functions depend on their arguments and version alone."""

_CHANGING = frozenset(
    (
        *("compile", "eval", "exec", "globals", "hash", "id", "input", "locals", "open", "vars"),
        "__import__",
    )
)
"""Functions of Python that depend on more than their arguments."""

_READERS = frozenset(("from_file", "hub", "load", "load_state_dict_from_url"))
"""Attributes, as of torch and numpy, that read files."""

_PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")

_PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range, type(...))
_BY_VALUE = (tuple, frozenset, types.CodeType)
"""Of which equal ones may be one object or several, as Python compiles or loads them."""

_SETTINGS = (torch.dtype, torch.device, torch.memory_format, torch.layout, types.GenericAlias)

_SKIPPED = frozenset(("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__"))
_OF_MODULES = frozenset(
    (
        *("__annotations__", "__builtins__", "__cached__", "__doc__", "__file__", "__loader__"),
        *("__name__", "__package__", "__path__", "__spec__"),
    )
)


class Unreadable(Exception):
    """What a module depends on cannot be read; the message has the reason."""


def export_key(modules: Iterable[object], *settings: object) -> str:
    """Return the hash of all that the export of a module depends on.

    Args:
        modules: The module and its twin, and functions of the user.
        *settings: Names, shapes, kind and range of x.

    Raises:
        Unreadable: Something that it may depend on cannot be read.
    """
    reader = _Reader()
    reader.add(repr(settings))
    reader.add([torch.get_default_dtype(), _exporter()])
    for file in _user_files():
        reader.add(str(file))
        reader.add(_bytes(file))
    try:
        for module in modules:
            reader.add(module)
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    return reader.digest()


class _Reader:
    """Hashes objects and all that they refer to."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen = dict[int, tuple[int, object]]()

    def digest(self) -> str:
        return self._hash.hexdigest()

    def _write(self, tag: str, data: bytes = b"") -> None:
        head = tag.encode()
        self._hash.update(struct.pack("<QQ", len(head), len(data)) + head + data)

    def add(self, value: Any) -> None:
        """Hash one object.

        Raises:
            Unreadable: It depends on something that cannot be read.
        """
        if type(value) in _PLAIN:
            self._write(type(value).__name__, repr(value).encode(errors="surrogatepass"))
            return
        if id(value) in self._seen:
            self._write("again", str(self._seen[id(value)][0]).encode())
            return
        if type(value) not in _BY_VALUE:
            self._seen[id(value)] = (len(self._seen), value)  # alive, so no other gets its id
        self._write(f"{type(value).__module__}.{type(value).__qualname__}")
        self._add(value)

    def _add(self, value: Any) -> None:
        if isinstance(value, enum.Enum):
            self._write(value.name)
            self.add(type(value))
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            self._array(np.asarray(value))
        elif isinstance(value, nn.Module):
            self._class(type(value), is_made=True)
            self._pairs(vars(value).items())
        elif isinstance(value, type):
            self._class(value, is_made=False)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif type(value) in (list, tuple, torch.Size):
            self._sequence(value)
        elif type(value) in (dict, OrderedDict, types.MappingProxyType):
            self._pairs(value.items())
        elif type(value) is defaultdict:
            self.add(value.default_factory)
            self._pairs(value.items())
        elif type(value) in (set, frozenset):
            self._sequence(sorted(value, key=repr))
        elif isinstance(value, types.MethodType):
            self._sequence((value.__self__, value.__func__))
        elif isinstance(value, staticmethod | classmethod):
            self.add(value.__func__)
        elif isinstance(value, property):
            self._sequence((value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.partial):
            self._sequence((value.func, value.args, value.keywords))
        elif isinstance(value, functools._lru_cache_wrapper):
            self.add(value.__wrapped__)
        elif type(value) is weakref.ReferenceType:  # of a recurrent layer, to its weights
            self.add(value())
        elif isinstance(value, _SETTINGS) or type(value).__module__ == "typing":
            self._write(repr(value))
        elif _is_builtin(value):
            self._write(f"{value.__name__} {_owner(value)}")
        else:
            self._instance(value)

    def _sequence(self, values: Iterable[object]) -> None:
        found = list(values)
        self._write("values", str(len(found)).encode())
        for value in found:
            self.add(value)

    def _pairs(self, pairs: Iterable[tuple[object, object]]) -> None:
        self._sequence(part for pair in pairs for part in pair)

    def _tensor(self, tensor: torch.Tensor) -> None:
        plain = (torch.Tensor, nn.Parameter, nn.Buffer)
        if type(tensor) not in plain or tensor.layout != torch.strided or tensor.is_quantized:
            raise Unreadable(f"it has a tensor of type {type(tensor).__name__}, {tensor.layout}")
        self._write(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}")
        values = tensor.detach().cpu().reshape(-1).contiguous()
        self._write("data", values.view(torch.uint8).numpy().tobytes() if values.numel() else b"")
        if vars(tensor):
            self._pairs(vars(tensor).items())

    def _array(self, array: Any) -> None:
        if array.dtype.hasobject:
            raise Unreadable("it has an array of objects")
        self._write(f"{array.dtype.str} {array.shape}", array.tobytes())

    def _class(self, kind: type, *, is_made: bool) -> None:
        """Hash a class; without its constructor for one whose instance is there."""
        self._write(f"{kind.__module__}.{kind.__qualname__}")
        if _is_steady(kind.__module__):
            return
        _refuse_library(kind.__module__, kind.__qualname__)
        for base in (type(kind), *kind.__mro__[1:]):
            self.add(base)
        for name, value in sorted(vars(kind).items()):
            if name not in _SKIPPED and not (is_made and name == "__init__"):
                self._write(name)
                if not isinstance(value, types.MemberDescriptorType):
                    self.add(value)

    def _function(self, function: types.FunctionType) -> None:
        self._write(f"{function.__module__}.{function.__qualname__}")
        if _is_steady(function.__module__):
            return
        _refuse_library(function.__module__, function.__qualname__)
        self._sequence((function.__code__, function.__defaults__, function.__kwdefaults__))
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            self._write(name)
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self._write("empty")
        scope = function.__globals__
        for name in sorted(_globals_of(function.__code__)):
            self._write(name)
            if name in scope:
                self.add(scope[name])
            elif name in _CHANGING:
                raise Unreadable(f"{function.__qualname__} calls {name}()")
        if vars(function):
            self._pairs(vars(function).items())

    def _code(self, code: types.CodeType) -> None:
        read = _READERS.intersection(code.co_names)
        if read:
            raise Unreadable(f"{code.co_name} may read a file by {min(read)}()")
        self._write("code", code.co_code)
        self._write("tables", getattr(code, "co_exceptiontable", b""))
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
        self._write(repr((names, counts)))
        self._sequence(code.co_consts)

    def _module(self, module: types.ModuleType) -> None:
        self._write(module.__name__)
        if _is_steady(module.__name__):
            return
        _refuse_library(module.__name__, "")
        for name, value in sorted(vars(module).items()):
            if name not in _OF_MODULES:
                self._write(name)
                self.add(value)

    def _instance(self, value: object) -> None:
        kind = type(value)
        own = [k for k in kind.__mro__ if k is not object]
        if any(_is_steady(k.__module__) and not _is_python(k) for k in own):
            raise Unreadable(f"it has an object of type {kind.__module__}.{kind.__qualname__}")
        if isinstance(value, tuple):
            self._sequence(value)
        for name in (name for k in own for name in vars(k).get("__slots__", ())):
            if hasattr(value, name):
                self._write(name)
                self.add(getattr(value, name))
        self._class(kind, is_made=False)
        self._pairs(getattr(value, "__dict__", {}).items())


def _is_steady(module: str | None) -> bool:
    return str(module).partition(".")[0] in _STEADY


def _is_python(kind: type) -> bool:
    """Return whether a class is written in Python, so that its state is in its attributes."""
    return any(isinstance(value, types.FunctionType) for value in vars(kind).values())


def _refuse_library(module: str | None, name: str) -> None:
    """Refuse what depends on more than its arguments: the rest of Python's library."""
    top = str(module).partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        raise Unreadable(f"it uses {module}{f'.{name}' if name else ''}")


def _is_builtin(value: object) -> bool:
    kinds = (
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.GetSetDescriptorType,
        types.ClassMethodDescriptorType,
    )
    return isinstance(value, kinds)


def _owner(value: Any) -> str:
    """Return the module of a function written in C.

    Raises:
        Unreadable: It may depend on more than its arguments.
    """
    of = getattr(value, "__self__", None)
    owner = getattr(value, "__objclass__", of if isinstance(of, type) else type(of))
    name = of.__name__ if isinstance(of, types.ModuleType) else owner.__module__
    if not _is_steady(name) or (name == "builtins" and value.__name__ in _CHANGING):
        raise Unreadable(f"it uses {name}.{value.__name__}")
    return str(name)


@cache
def _globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the globals that a function and the functions in it read.

    Raises:
        Unreadable: One imports a module.
    """
    found = set[str]()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add(str(step.argval))
        if step.opname == "IMPORT_NAME" and not _is_steady(str(step.argval)):
            raise Unreadable(f"{code.co_name} imports {step.argval}")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _globals_of(constant)
    return frozenset(found)


def _user_files() -> list[Path]:
    """Return the source files of the loaded modules that are neither Python's nor installed."""
    paths = sysconfig.get_paths()
    installed = tuple({paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})
    own = str(Path(__file__).resolve().parents[2])
    found = set[Path]()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not (file.endswith(".py") and os.path.isabs(file)):
            continue
        is_own = name.startswith("fairbed.") and str(Path(file).resolve()).startswith(own)
        if not (is_own or file.startswith(installed) or _is_steady(name)):
            found.add(Path(file))
    return sorted(found)


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise Unreadable(f"{file} cannot be read") from exc


@cache
def _exporter() -> str:
    """Return the hash of the exporter's sources, and of the versions that it uses."""
    found = hashlib.sha256()
    here = Path(__file__).resolve().parent
    for file in [*sorted(here.rglob("*.py")), *sorted((here.parents[1] / "wire").glob("*.py"))]:
        found.update(file.read_bytes())
    names = [sys.version, platform.machine()]
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            names.append(f"{name} {version(name)}")
    found.update(repr(names).encode())
    return found.hexdigest()


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str
    artifact: bytes
    figures: ExportFigures


_DECODER = msgspec.msgpack.Decoder(_Kept)
_HASH_BYTES = 32


class ExportCache:
    """Exported tasks in a folder, bounded in size.

    Args:
        folder: The folder, which need not exist. One that cannot be written keeps nothing.
        max_bytes: Limit of all files together.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder, self._max_bytes = folder, max_bytes

    def exported(
        self,
        label: str,
        modules: Iterable[object],
        settings: Iterable[object],
        export: Callable[[Callable[[ExportFigures], None]], Artifact],
        report: Callable[[ExportFigures], None] | None,
    ) -> Artifact:
        """Return the kept task of a module, or export it and keep the result.

        Args:
            label: Name of the model, for the log.
            modules: The module and its twin, and functions of the user.
            settings: All else that the export depends on.
            export: Exports the module, and reports what that took.
            report: Called with what the export took, now or when it was made.
        """
        try:
            key = export_key(modules, *settings)
        except Unreadable as exc:
            _log.info("model %s: the export is not kept, because %s", label, exc)
            return export(report or _ignore)
        kept = self._read(key)
        if kept is not None:
            artifact, figures = kept
            _log.info("model %s: exported before, read from %s", label, self._folder)
            (report or _ignore)(figures)
            return artifact
        found = list[ExportFigures]()
        artifact = export(found.append)
        self._write(key, artifact, found[0])
        (report or _ignore)(found[0])
        return artifact

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}{SUFFIX}"

    def _read(self, key: str) -> tuple[Artifact, ExportFigures] | None:
        """Return what is kept; None if there is nothing, or it is damaged."""
        file = self._file(key)
        with suppress(OSError):
            blob = file.read_bytes()
            body = blob[_HASH_BYTES:]
            with suppress(msgspec.DecodeError, DecodeError):
                if hashlib.sha256(body).digest() == blob[:_HASH_BYTES]:
                    kept = _DECODER.decode(body)
                    artifact = decode_artifact(kept.artifact)
                    check_graph(artifact.train)
                    check_graph(artifact.evaluate)
                    if artifact.counts:
                        check_graph(artifact.counts)
                    if kept.key == key:
                        os.utime(file)
                        return artifact, kept.figures
        return None

    def _write(self, key: str, artifact: Artifact, figures: ExportFigures) -> None:
        kept = _Kept(key=key, artifact=encode_artifact(artifact), figures=figures)
        body = msgspec.msgpack.encode(kept)
        file = self._file(key)
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(f".{os.getpid()}")
            partial.write_bytes(hashlib.sha256(body).digest() + body)
            partial.replace(file)
            self._bound()

    def _bound(self) -> None:
        files = sorted(
            self._folder.glob(f"*{SUFFIX}"), key=lambda f: f.stat().st_mtime, reverse=True
        )
        total = 0
        for file in files:
            total += file.stat().st_size
            if total > self._max_bytes:
                file.unlink(missing_ok=True)


def _ignore(_: ExportFigures) -> None:
    pass
