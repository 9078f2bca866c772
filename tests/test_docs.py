"""The documentation runs: every Python block, the commands, the generated pages and the links."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RUN = [ROOT / "README.md", DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]
SHELL = 'set -euo pipefail; spurless() { "$SPURLESS_PYTHON" -m spurless "$@"; }\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "page",
    [page for page in RUN if page.name not in ("README.md", "tutorial.md", "command-line.md")],
    ids=lambda p: p.stem,
)
def test_every_python_block_runs(page: Path) -> None:
    assert blocks(page, "python"), f"{page} has no block to run: it belongs into explanation/"
    run_page(page)


@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
@pytest.mark.parametrize(
    "page",
    [p for p in sorted((DOCS / "explanation").glob("*.md")) if "```python" in p.read_text() and p.stem != "avp"],
    ids=lambda p: p.stem,
)
def test_every_python_block_of_an_explanation_runs(page: Path) -> None:
    run_page(page)  # not AVP's, which is the paper's whole experiment


def test_the_readme_does_what_it_says(folder: Path) -> None:
    said = run_page(ROOT / "README.md")
    erm, fixed = said["erm"].record, said["fixed"].record
    assert fixed.metrics["worst_group"] > erm.metrics["worst_group"] + 0.3
    assert (folder / "report.html").stat().st_size > 0
    assert type(said["net"]).__name__ == "Sequential"


def test_the_tutorial_tells_the_truth(folder: Path) -> None:
    said = run_page(DOCS / "tutorial.md")
    erm, jtt, resampled, dfr = (said[name].record for name in ("erm", "jtt", "resampled", "dfr"))
    assert erm.metrics["adjusted_average"] > erm.metrics["average"] + 0.1  # "the adjusted average looks best"
    aligned = [row.accuracy for row in erm.groups if row.train_count > 100]
    assert min(aligned) > max(row.accuracy for row in erm.groups if row.train_count < 100)
    worst = [run.metrics["worst_group"] for run in (erm, jtt, resampled, dfr)]
    assert worst == sorted(worst)  # "the more a method was told, the more it gains here"
    assert worst[-1] > worst[0] + 0.3
    assert said["table"].worst[0] == pytest.approx(worst[-1])  # "the number of the record again"
    assert [sum(run.supervision.values()) for run in (erm, jtt, resampled, dfr)] == [0, 0, 1, 2]
    assert (folder / "report.html").stat().st_size > 0


@pytest.mark.parametrize(
    ("page", "left"),
    [
        (ROOT / "README.md", "report.html"),
        (DOCS / "how-to" / "command-line.md", "report.html"),
        (DOCS / "how-to" / "datasets.md", "sheet.html"),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_every_command_runs(page: Path, left: str, folder: Path) -> None:
    script = SHELL + "\n".join(code for _, code in blocks(page, "bash"))
    environment = {**os.environ, "SPURLESS_PYTHON": sys.executable}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / left).stat().st_size > 0
    if left == "report.html":
        assert "worst group" in done.stdout
        assert len((folder / "runs" / "records.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("kind", ["folder", "csv", "text"])
def test_a_guide_saves_the_weights_that_its_commands_read(kind: str) -> None:
    page = DOCS / "how-to" / f"guide-{kind}.md"
    python, shell = ("\n".join(code for _, code in blocks(page, word)) for word in ("python", "sh"))
    for name in set(re.findall(r"[\w-]+\.safetensors", shell)):
        assert f'sp.save_weights("{name}", ' in python, name


def test_the_plans_of_the_bench_page_are_plans(folder: Path) -> None:
    from spurless.bench.experiment import load_dataset
    from spurless.bench.plan import read_plan

    page = DOCS / "how-to" / "bench.md"
    small, full = (code for _, code in blocks(page, "toml"))
    (folder / "full.toml").write_text(full)
    plan = read_plan(folder / "full.toml", lambda *_: load_dataset)
    assert {name: list(cells) for name, cells in plan.experiments.items()} == {
        name: ["erm", "dfr", "dfr-few"] for name in ("planted", "birds")
    }
    (folder / "plan.toml").write_text(small.replace("seeds = 3", "seeds = 1"))  # a third of the time
    (_, commands), *_ = blocks(page, "sh")
    environment = {**os.environ, "SPURLESS_PYTHON": sys.executable}
    script = ["bash", "-c", SHELL + commands]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "bench.html").stat().st_size > 0
    assert "against erm" in done.stdout


def test_the_method_of_the_page_goes_by_its_name(folder: Path) -> None:
    from spurless.bench.plan import read_plan
    from spurless.methods import make_method

    page = DOCS / "how-to" / "add-a-method.md"
    (_, code), *_ = blocks(page, "python")
    (folder / "mine.py").write_text(code)
    ((_, text),) = blocks(page, "toml")
    (folder / "plan.toml").write_text(text)
    plan = read_plan(folder / "plan.toml")
    (ours,) = {cells["ours"].method for cells in plan.experiments.values()}
    assert ours == f"{folder.resolve() / 'mine.py'}:SpectralDecoupling"
    assert make_method(ours, **plan.experiments["colored-digits"]["ours"].method_options).config.strength == 0.5


def test_the_generated_pages_are_up_to_date() -> None:
    for name, text in generator().pages().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"docs/{name} is old: run make docs"


def test_fidelity_is_read_from_records_alone(tmp_path: Path) -> None:
    from dataclasses import replace

    from spurless.bench.claims import CLAIMS
    from spurless.bench.experiment import run_experiment
    from spurless.core.records import append_record

    claim = CLAIMS["theory/planted-group-dro"]
    assert "not measured here yet" in row_of(generator().fidelity_page(tmp_path), claim.id)
    (name, cell), *_ = claim.experiments.items()
    record = run_experiment(replace(cell, data_options={"n_train": 100}, train={"steps": 1}), 0).record
    for seed, worst in enumerate((0.84, 0.85)):
        made = replace(record, seed=seed, cell=f"{claim.id} {name}", metrics={"worst_group": worst}, commit="abc")
        append_record(tmp_path / "theory-planted-group-dro.jsonl", made)
    page = generator().fidelity_page(tmp_path)
    assert "84.50 (84.00 to 85.00)" in row_of(page, claim.id)
    assert "| holds |" in row_of(page, claim.id)
    assert "| abc |" in page
    rows = ({"loss": 1.0, "train_accuracy": 0.9},)
    short = replace(made, seed=2, train={"stop_accuracy": 1.0}, history=rows)
    append_record(tmp_path / "theory-planted-group-dro.jsonl", short)
    row = row_of(generator().fidelity_page(tmp_path), claim.id)
    assert "84.67 (84.00 to 85.00); 1 of 3 runs were cut off" in row  # a number may rest on such runs, and says so


def test_fidelity_tells_seeds_that_are_missing_and_runs_that_were_cut_off(tmp_path: Path) -> None:
    from dataclasses import replace

    from spurless.bench.claims import CLAIMS
    from spurless.core.records import append_record, read_records

    claim = CLAIMS["large-lr/double-mnist-resnet18"]
    file = "large-lr-double-mnist-resnet18.jsonl"
    records = read_records(ROOT / "benchmarks" / "claims" / file)
    for record in records:
        if (record.cell.endswith("lr=0.1"), record.seed) != (True, 2):  # of the last seed one rate is yet to be run
            append_record(tmp_path / file, record)
    row = row_of(generator().fidelity_page(tmp_path), claim.id)
    assert "| 2 of 3 (mean) |" in row
    assert "| holds |" in row
    last = next(r for r in records if r.cell.endswith("lr=0.1") and r.seed == 2)
    append_record(tmp_path / file, replace(last, history=last.history[:1]))
    row = row_of(generator().fidelity_page(tmp_path), claim.id)
    assert re.search(r"none: a run was cut off \(by seed: [\d.]+, [\d.]+, none\)", row)
    assert "| 3 (mean) |" in row


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tutorial.html").exists()
    fetched = [page for page in (tmp_path / "site").rglob("*.html") if re.search(LOADED, page.read_text())]
    assert not fetched, "the site asks the network for something"


def test_docstrings_become_markdown() -> None:
    text = "See :meth:`fit`.\n\n.. math:: a\n    b\n\nExample:\n    >>> [1]\n    [1]"
    plain = script("plain_docstrings").plain(text)
    assert plain == "See `fit`.\n\n```latex\na\nb\n```\n\nExamples:\n    >>> [1]\n    [1]"


LOADED = r"""<(?:script|img|iframe)[^>]+src=["']?(?:https?:)?//|<link[^>]+stylesheet[^>]+href=["']?(?:https?:)?//"""


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Return the fenced blocks of a language, each with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: block.start(1)].count("\n"), block[1]) for block in found]


def run_page(page: Path) -> dict[str, Any]:
    """Run the Python blocks of a page one after another, in one namespace; an error names the line of the page."""
    names: dict[str, Any] = {"__name__": "page"}
    with torch.random.fork_rng():
        torch.manual_seed(0)  # a page need not: its own nets may start anywhere
        for lines_above, code in blocks(page, "python"):
            exec(compile("\n" * lines_above + code, str(page), "exec", dont_inherit=True), names)
    return names


def row_of(page: str, claim: str) -> str:
    """Return the first row of a page that is about a claim."""
    return next(line for line in page.splitlines() if line.startswith(f"| `{claim}`"))


def generator() -> Any:
    """Return the module that writes the generated pages."""
    return script("generate")


def script(name: str) -> Any:
    """Import a file of docs/, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
