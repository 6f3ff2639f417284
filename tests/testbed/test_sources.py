"""Which source files a part of the user consists of."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fairbed.testbed.inputs import own_sources
from fairbed.testbed.sources import UNREADABLE, imports_in, sources_of
from tests.testbed.replay.fleets import experiment

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write files of modules into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(**sources: str) -> None:
        for name, text in sources.items():
            path = tmp_path.joinpath(*name.split("__in__")[::-1]).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    return written


def names(*modules: str) -> list[str]:
    return list(sources_of(modules).files)


def test_a_helper_beside_a_part_counts_however_it_is_imported(write: Write) -> None:
    write(
        src_part="def f():\n    import src_late\nif False:\n    from src_cond import x\n"
        "try:\n    import src_absent\nexcept ImportError:\n    pass\n"
        "import importlib\nimportlib.import_module('src_text')\nimport numpy, json\n",
        src_late="import src_deep",
        src_deep="",
        src_cond="x = 1",
        src_text="import src_part",
        src_other="",
    )
    expected = ["src_cond.py", "src_deep.py", "src_late.py", "src_part.py", "src_text.py"]
    assert names("src_part") == expected


def test_packages_count_with_their_init_files_and_relative_imports(
    write: Write, tmp_path: Path
) -> None:
    write(
        mod__in__src_pkg="from . import near\nfrom .near import *\nfrom ..src_pkg import far\n",
        near__in__src_pkg="from src_space.inner import y",
        far__in__src_pkg="",
        unused__in__src_pkg="",
        inner__in__src_space="y = 1",
    )
    (tmp_path / "src_pkg" / "__init__.py").write_text("from .init_only import z")
    (tmp_path / "src_pkg" / "init_only.py").write_text("z = 1")
    expected = ["__init__", "init_only", "mod", "near"]
    assert names("src_pkg.mod") == [*(f"src_pkg/{n}.py" for n in expected), "src_space/inner.py"]


def test_a_computed_name_means_all_modules_beside(write: Write) -> None:
    write(
        mod__in__src_dyn="import importlib\nimportlib.import_module(f'{__package__}.{1}')\n",
        one__in__src_dyn="",
        __init____in__src_dyn="",
    )
    assert names("src_dyn.mod") == ["src_dyn/__init__.py", "src_dyn/mod.py", "src_dyn/one.py"]


def test_a_compiled_module_counts_by_its_bytes(write: Write, tmp_path: Path) -> None:
    write(src_uses="import src_fast")
    from importlib.machinery import EXTENSION_SUFFIXES

    file = tmp_path / f"src_fast{EXTENSION_SUFFIXES[0]}"
    file.write_bytes(b"\x7fELF")
    before = sources_of(["src_uses"]).files
    assert list(before) == [file.name, "src_uses.py"]
    file.write_bytes(b"\x7fELG")
    assert sources_of(["src_uses"]).files[file.name] != before[file.name]


def test_a_part_that_imports_fairbed_or_installed_packages_does_not_consist_of_them() -> None:
    assert names("fairbed.examples.scaffold") == ["fairbed/examples/scaffold.py"]
    assert {name.partition("/")[0] for name in names("msgspec.json")} == {"msgspec"}


def test_nothing_is_imported_and_a_damaged_source_is_hashed(write: Write) -> None:
    write(src_bad="raise SystemExit\n", src_broken="import src_bad\ndef (")
    assert names("src_bad") == ["src_bad.py"]
    assert names("src_broken") == ["src_broken.py"]
    assert names("src_nowhere", "src_nowhere.inner") == []
    assert imports_in(b"from .... import x", "a", list) == []


PROGRAM = """
import src_of_program
import fairbed
SCALE = 2.0
def helper():
    return SCALE * src_of_program.x
class Mine:
    def select(self):
        return helper()
def other():
    return 3
seeds = {seeds}
fairbed.compare("grid.toml", seeds=seeds)
"""


def test_of_a_program_only_what_a_registered_part_uses_counts(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "script.py")
    write(src_of_program="x = 1")

    class Mine:
        """Stands for the class of the program."""

    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    monkeypatch.setitem(sys.modules, "__main__", main)

    def found(text: str) -> dict[str, str]:
        Path(main.__file__ or "").write_text(text)
        return dict(sources_of([], [Mine]).files)

    before = found(PROGRAM.format(seeds=3))
    assert list(before) == ["__main__.Mine", "src_of_program.py"]
    assert found(PROGRAM.format(seeds=4).replace("return 3", "return 4")) == before
    assert found(PROGRAM.format(seeds=3).replace("2.0", "2.5")) != before
    main.__file__ = None
    assert sources_of([], [Mine]).files == {"__main__.Mine": UNREADABLE}


def test_a_function_that_augments_is_an_input_of_the_run(write: Write) -> None:
    write(src_augment="import src_colours", src_colours="")
    augment = [{"kind": "flip"}, {"kind": "src_augment:darker"}]
    of = experiment({"profile": "raspberry-pi-4b", "count": 2}, training={"augment": augment})
    assert sorted(own_sources(of).files) == ["src_augment.py", "src_colours.py"]
