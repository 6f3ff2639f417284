"""Find words that readers do not understand: python tools/check_words.py [PATH ...] [--count].

Devices, processes and code are things: "who", "nobody" and "told" hide which one is meant, and a
metaphor hides what a function does. The check reads comments, docstrings, messages and names in
Python files, and the text of Markdown pages outside code. `tools/words_allowed.txt` lists the lines
in which a listed word is right: PATH: TEXT OF THE LINE.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = Path(__file__).with_name("words_allowed.txt")
FOLDERS = (
    "wire",
    "device_agent",
    "coordinator",
    "profiles",
    "testbed",
    "experiments",
    "benchmarks",
    "examples",
    "tools",
    "docs",
)
PAGES = ("README.md", "CHANGELOG.md")
SKIPPED = frozenset({"docs/decisions/0013-rooms-and-names.md", "tools/check_words.py"})
"""The table of names before and after, and this list."""

PROSE = re.compile(
    r"\b(who|whom|nobody|somebody|anybody|everybody|himself|herself|told|tells?|telling"
    r"|says?|said|saying|foretold|luck|lucky|crowd|weather|errands?|crew|nursery|wish(?:es)?)\b",
    re.IGNORECASE,
)
_NAMES = """
    who whose nobody somebody anybody everybody told tell says said say asked asks asker foretold
    luck crowd weather errand errands crew nursery guest wishes books hindsight
"""
NAMES = frozenset(_NAMES.split())
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`|\]\([^)\s]*\)")


def findings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and listed word, for each in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
        yield from _in_prose(_INLINE_CODE.sub("", text), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield from _in_prose(_INLINE_CODE.sub("", token.string), token.start[0])
    yield from _in_names(ast.parse(text))


def _in_prose(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), first_line):
        for match in PROSE.finditer(line):
            yield number, match[0]


def _in_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield names that the file defines: functions, classes, arguments, attributes, variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
        else:
            continue
        if any(part.lower() in NAMES for part in _PART.findall(name)):
            yield getattr(node, "lineno", 1), name


def main() -> int:
    """Print each finding, or their number by folder."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--count"]
    paths = [Path(argument).resolve() for argument in arguments] or [
        *(ROOT / folder for folder in FOLDERS),
        *(ROOT / page for page in PAGES),
    ]
    files = sorted(
        file
        for path in paths
        for file in ([path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.md")])
    )
    allowed = set(ALLOWED.read_text(encoding="utf-8").splitlines()) if ALLOWED.exists() else set()
    counts: Counter[str] = Counter()
    for file in files:
        place = file.relative_to(ROOT).as_posix()
        if place in SKIPPED:
            continue
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, word in findings(file):
            if f"{place}: {lines[number - 1].strip()}" in allowed:
                continue
            counts["/".join(place.split("/")[:2])] += 1
            if "--count" not in sys.argv:
                print(f"{place}:{number}: {word!r}: name the thing, or add it to {ALLOWED.name}")
    if "--count" in sys.argv:
        for folder, count in counts.most_common():
            print(f"{count:5d}  {folder}")
    print(f"{counts.total()} listed words in {len(files)} files")
    return min(counts.total(), 1)


if __name__ == "__main__":
    sys.exit(main())
