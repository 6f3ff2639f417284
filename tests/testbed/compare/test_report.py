"""The LaTeX table of a comparison: one that can be pasted, of the metrics that were chosen."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.comparison import Comparison
from fairbed.testbed.compare.grid import Grid
from fairbed.testbed.compare.report import effects_tex, tex, write_report
from fairbed.wire.printable import latex
from tests.testbed.compare import test_contrasts
from tests.testbed.compare.results import FAST, cell, compared, grid_of, result, results

TEX = next((name for name in ("pdflatex", "lualatex", "xelatex") if shutil.which(name)), None)
DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs}
\begin{document}
\input{compare.tex}
\end{document}
"""


def problems(text: str) -> list[str]:
    """Return what LaTeX would refuse: environments, rows, braces, math and bare specials."""
    found = []
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = "\n".join(lines)
    begun = list[str]()
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        if kind == "begin":
            begun.append(name)
        elif not begun or begun.pop() != name:
            found.append(f"environment {name}")
    found += [f"environment {name}" for name in begun]
    columns = 0
    for line in lines:
        if "\\begin{tabular}" in line:
            columns = len(re.sub(r".*\{tabular\}\{(\w+)\}", r"\1", line))
        if line.endswith(r" \\") and len(re.findall(r"(?<!\\)&", line)) != columns - 1:
            found.append(f"columns: {line}")
        if line.endswith(r"\\") and not line.endswith(r" \\"):
            found.append(f"row: {line}")
    bare = re.sub(r"\\[\\{}&%$#_,]", "", re.sub(r"\\label\{[^}]*\}", "", body))
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            break
    if depth:
        found.append("braces")
    text_only, math = re.sub(r"\$[^$]*\$", "", bare), re.findall(r"\$([^$]*)\$", bare)
    if bare.count("$") % 2 or "$$" in bare:
        found.append("dollars")
    found += [f"in text: {special}" for special in "%#_~^" if special in text_only]
    found += [f"in math: {part}" for part in math if re.search(r"[%#_~&]|\^(?!\{)", part)]
    if not text.isascii():
        found.append("not ASCII")
    return found


def wild(tmp_path: Path) -> Comparison:
    """Return a comparison with everything that the table can have beside its numbers."""
    grid = grid_of(tmp_path, 5, 'set = { "replay.training" = true }\ntarget = { accuracy = [0.7] }')

    def make(arm: str, seed: int) -> CellResult:
        missing = arm == FAST and seed < 2
        return result(
            arm,
            seed,
            slope=0.09 if seed == 0 else 0.05,
            accuracy_mean=None if missing else (0.02, 0.5, 0.98, 0.1, 0.9)[seed],
            accuracy_worst10=0.1,
            missing="a reason_with {specials} & 10 % of $^~#\\",
        )

    return compared(grid, results(grid, make))


def test_the_table_is_what_latex_accepts(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    for comparison in (compared(grid, results(grid, cell)), wild(tmp_path)):
        assert problems(tex(comparison)) == []
    assert problems(r"\begin{table}a & b_c $ \end{tabular} \\")[0] == "environment tabular"


def with_effects(tmp_path: Path) -> Comparison:
    """Return a comparison with effects of every kind on a linear and a log scale, and margins."""
    grid = test_contrasts.grid_of(
        tmp_path,
        test_contrasts.FACTORS
        + 'metrics = ["accuracy_mean", "virtual_s", "accuracy_worst10"]\n'
        + "equivalent = { accuracy_mean = 0.2, virtual_s = 0.5 }\n",
    )

    def make(arm: str, seed: int) -> CellResult:
        step = 0.1 * ("rbcs" in arm) + 0.05 * ("term" in arm) + 0.002 * seed * len(arm) / 20
        return result(
            arm,
            seed,
            round_s=10.0 + 3.0 * ("rbcs" in arm) + 0.1 * seed,
            accuracy_mean=0.5 + step,
            accuracy_worst10=None if (seed, "term" in arm) == (3, True) else 0.3 + step,
            missing="a reason_with {specials} & 10 % of $^~#\\",
        )

    return compared(grid, results(grid, make))


def test_effects_have_a_table_for_each_contrast_and_metric(tmp_path: Path) -> None:
    found = with_effects(tmp_path)
    text = effects_tex(found)
    assert problems(text) == []
    assert text.count(r"\begin{table}") == 3
    assert r"\caption{Total time: effects of contrast fair.}" in text
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    main = next(row for row in rows if row.startswith("policy uniform to rbcs-f &"))
    kind, estimate, n, p, flips, verdict, equivalence = main.removesuffix(r" \\").split(" & ")[1:]
    assert (kind, n, verdict) == ("main", "$8$", "better")
    assert re.fullmatch(r"\$\\mathbf\{\+0\.099\d*\}\$ \{\\scriptsize \$\[.*\]\$\}", estimate)
    assert re.fullmatch(r"\$(<?0\.\d+)\$", p)
    assert re.fullmatch(r"\$(<?0\.\d+)\$", flips)
    assert equivalence.startswith("within 0.2, p ")
    assert "not shown within 50\\%" in text or "within 50 \\%" in text
    lacking = text[text.index("Worst 10") :]
    assert r"^{\ddagger}" in lacking
    assert "Not tested: undefined in a seed of " in lacking
    assert r"$p$ is corrected by Holm's method over" in text
    write_report(found, tmp_path)
    assert (tmp_path / "effects.tex").read_text(encoding="utf-8") == text
    bare = tmp_path / "bare"
    bare.mkdir()
    grid: Grid = grid_of(tmp_path)
    write_report(compared(grid, results(grid, cell)), bare)
    assert not (bare / "effects.tex").exists(), "there is no contrast"


@pytest.mark.skipif(TEX is None, reason="no pdflatex, lualatex or xelatex is installed")
def test_latex_compiles_the_table(tmp_path: Path) -> None:
    assert TEX is not None
    (tmp_path / "compare.tex").write_text(tex(wild(tmp_path)), encoding="utf-8")
    (tmp_path / "effects.tex").write_text(effects_tex(with_effects(tmp_path)), encoding="utf-8")
    page = DOCUMENT.replace(r"\input{compare.tex}", r"\input{compare.tex}\input{effects.tex}")
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    command = [TEX, "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "page.pdf").stat().st_size > 0


def test_there_is_one_table_with_the_primary_metric_first(tmp_path: Path) -> None:
    text = tex(wild(tmp_path))
    assert text.count(r"\begin{table}") == text.count(r"\caption{") == 1
    (head,) = [line for line in text.splitlines() if "$^{*}$ &" in line]
    assert head.startswith(r" & final accuracy$^{*}$ & worst 10 \% & time to 0.700, s & ")
    caption = re.search(r"\\caption\{(.*)\}", text)
    assert caption is not None
    assert len(caption[1]) < 80


def test_marks_and_counts_are_in_the_cells(tmp_path: Path) -> None:
    lines = [line for line in tex(wild(tmp_path)).splitlines() if line.endswith(r" \\")]
    rows = [line.removesuffix(r" \\").split(" & ") for line in lines]
    names = [row[0] for row in rows]
    uniform, fast = (rows[names.index(latex(name))] for name in ("uniform", FAST))
    gap = rows[names.index(latex(FAST)) + 1]
    assert uniform[1].endswith(r"]^{\dagger}$}"), "the interval ends at 1"
    assert uniform[3].endswith(" (1/5)"), "in one seed the mean of five reaches 0.7"
    assert "$n=3/5$" in fast[1]
    assert all(r"^{\ddagger}$" in value for value in gap[1:]), "a seed lacks the primary metric"


def test_a_grid_chooses_the_metrics_of_the_table(tmp_path: Path) -> None:
    own = grid_of(tmp_path, 10, 'report = ["jain", "virtual_s", "queue_mean_total"]')
    chosen = compared(own, results(own, cell))
    assert chosen.report == ["virtual_s", "jain", "queue_mean_total"], "the primary one is first"
    (head,) = [line for line in tex(chosen).splitlines() if "$^{*}$ &" in line]
    assert head == r" & total time, s$^{*}$ & Jain & virtual queues: mean sum \\"
    default = grid_of(tmp_path)
    assert compared(default, results(default, cell)).report == ["virtual_s", "min_rate_selected"]


def test_a_table_without_any_result_is_a_comment(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    none = compared(grid, results(grid, lambda arm, seed: result(arm, seed, problem="no")))
    assert all(line.startswith("%") for line in tex(none).splitlines())


def test_latex_escapes_any_text() -> None:
    assert latex(r"a_b & 5% {x} \y ~^$#") == (
        r"a\_b \& 5\% \{x\} \textbackslash{}y \textasciitilde{}\textasciicircum{}\$\#"
    )
    every = "".join(map(chr, range(32, 127)))
    assert problems(latex(every)) == []
