"""Pages from hostile names contain the elements and handlers of pages from plain names, and no others.

Every page is made twice from the same numbers, with plain and with hostile names of classes, attributes, files, texts,
methods and models, and a parser compares what a browser would build from them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import spurless as sp
from spurless.cli import app
from spurless.core.figures import Figure, Picture, Section
from spurless.reporting import (
    audit_html,
    audit_json,
    comparison_json,
    fix_html,
    fix_json,
    write_audit,
    write_comparison,
    write_fix,
    write_sections,
    write_suspects,
)
from spurless.reporting import compare as compare_audits

pytestmark = pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"><img src=x onerror=alert(3)>',
    "' onmouseover='alert(4)' x='",
    "</title><svg onload=alert(5)>",
    "</style><iframe srcdoc='<script>alert(6)</script>'>",
    "</textarea></select></option><form action=javascript:alert(7)>",
    "<!--",
    "--><b>",
    "]]><b>",
    "<a href='javascript:alert(8)'>x</a>",
    "javascript:alert(9)",
    "{{ 1337 * 1337 }}{% include '/etc/passwd' %}${1337*1337}",
    "%{x}<extra></extra>",
    "&lt;script&gt;alert(10)&lt;/script&gt;&#60;b&#62;",
    "\u202egnp.exe\u2066",
    "\x1b]0;title\x07\x1b[31m\x00\x08",
    "\u2028\u2029\ufeff\ud800",
    '=HYPERLINK("http://localhost")',
    "\t+1+cmd|' /C calc'!A0",
    "@SUM(1)",
    "a" * 5000,
    "\\u003cscript\\u003e\\x3cb\\x3e\\",
    "`${alert(11)}`",
)
PLAIN = tuple(f"name {i}" for i in range(len(HOSTILE)))
SAFE_SCHEMES = ("#", "data:image/", "data:text/csv", "blob:")
Names = tuple[str, ...]


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and where its links lead."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.shapes: set[tuple[str, tuple[str, ...]]] = set()
        self.handlers: set[tuple[str, str | None]] = set()
        self.links: set[str] = set()
        self.data: list[str] = []
        self.text = ""
        self._script: dict[str, str | None] | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shapes.add((tag, tuple(sorted({name for name, _ in attrs}))))
        self.handlers |= {(name, value) for name, value in attrs if name.startswith("on") or name == "srcdoc"}
        self.links |= {value or "" for name, value in attrs if name in ("href", "src", "action", "formaction")}
        self._script = dict(attrs) if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._script is not None and self._script.get("type") == "application/json":
            self.data.append(data)
        elif self._script is None:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._script = None if tag == "script" else self._script


def compare(plain: str, hostile: str) -> None:
    """Check that a page with hostile names has no more than one with plain names."""
    expected, got = Elements(plain), Elements(hostile)
    assert got.shapes <= expected.shapes
    assert got.handlers <= expected.handlers
    assert [link for link in got.links - expected.links if not link.startswith(SAFE_SCHEMES)] == []
    for data in got.data:
        json.loads(data)
    assert str(1337 * 1337) not in hostile  # no template evaluated a name
    assert not set(got.text) & {"\x00", "\x1b", "\x08", "\ud800"}


def make_data(words: Names) -> sp.Splits:
    """Images of as many classes as names, with a square that is the attribute."""
    generator = torch.Generator().manual_seed(0)
    n, k = 24 * len(words), len(words)
    y, a = torch.arange(n) % k, torch.arange(n) // k % 2
    x = (
        torch.randint(60, (n, 3, 8, 8), generator=generator, dtype=torch.uint8)
        + (y * 5).to(torch.uint8)[:, None, None, None]
    )
    x[:, 0, :3, :3] = (a * 200).to(torch.uint8)[:, None, None]
    parts = [("train", "val", "test")[i // k % 3] for i in range(n)]
    data = sp.from_tensors(
        x, y, a, split=parts, labels=words, attributes=(" ".join(words), words[0] * 2), name=" ".join(words)
    )
    return replace(data, notes=words, options={word: word for word in words})


def make_model() -> sp.Classifier:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, len(HOSTILE))
    )
    return sp.wrap(net)


def make_record(words: Names) -> sp.Record:
    fitted = sp.fit("erm", make_model(), make_data(words), train={"steps": 2}, compute=sp.Compute("cpu"))
    text = " ".join(words)
    record = replace(fitted.record, method=text, selection=text, warnings=words, cell=text, command=text, title=text)
    record = replace(record, time=text, commit=text, model={"name": text, "options": {text: text}}, config={text: text})
    return replace(
        record, hardware={"device": text, text: text}, versions={text: text}, train={**record.train, text: text}
    )


def make_report(words: Names, folder: Path) -> str:
    records = [replace(make_record(words), seed=seed) for seed in (0, 1)]
    other = [
        replace(record, method=f"{record.method} b", metrics={**record.metrics, words[0]: 0.5}) for record in records
    ]
    pixel = make_pixel(folder)
    pictures = [Picture(words[0], words[1], pixel, words[2])]
    return sp.report(folder / "r.html", [*records, *other], title=" ".join(words), pictures=pictures).read_text()


def make_pixel(folder: Path) -> bytes:
    Image.new("RGB", (1, 1)).save(folder / "p.png")
    return (folder / "p.png").read_bytes()


@cache
def make_audit(words: Names) -> Any:
    return sp.audit(make_model(), make_data(words), permutations=9, compute=sp.Compute("cpu"))


def make_audit_page(words: Names, folder: Path) -> str:
    audit = make_audit(words)
    assert json.loads(audit_json(audit))
    table = write_suspects(folder / "s.csv", audit)
    with table.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert [cell for cell in cells if cell.lstrip()[:1] in ("=", "+", "@")] == []
    return write_audit(folder / "a.html", audit, title=" ".join(words)).read_text()


def make_text_page(words: Names, folder: Path) -> str:
    texts = [f"{words[i % len(words)]} {i % 7}" for i in range(240)]
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    parts = [("train", "val", "test")[i // 2 % 3] for i in range(240)]
    labels = [words[i % 2] for i in range(240)]
    data = sp.from_texts(texts, labels, split=parts, tokenizer="words", max_length=16, name=words[0])
    model = sp.build("token-mean", data, width=4)
    audit = sp.audit(model, data, permutations=9, compute=sp.Compute("cpu"))
    return write_audit(folder / "t.html", audit).read_text()


@cache
def make_repair(words: Names) -> sp.Fixed:
    data = make_data(words)
    model = sp.fit("erm", make_model(), data, train={"steps": 2}, compute=sp.Compute("cpu")).model
    fixed = sp.fix(model, data, method="class-resample", train={"steps": 2}, compute=sp.Compute("cpu"))
    text = " ".join(words)
    return replace(fixed, word=text, properties=words, summary=words, model=fixed.model)


def make_fix_page(words: Names, folder: Path) -> str:
    fixed = make_repair(words)
    assert json.loads(fix_json(fixed))
    return write_fix(folder / "f.html", fixed, title=" ".join(words)).read_text()


def make_comparison(words: Names, folder: Path) -> str:
    audit = make_audit(words)
    comparison = compare_audits(audit, replace(audit, findings=audit.findings[1:], groups=audit.groups[1:]))
    assert json.loads(comparison_json(comparison))
    return write_comparison(folder / "c.html", comparison, title=" ".join(words)).read_text()


def make_sections(words: Names, folder: Path) -> str:
    text, pixel = " ".join(words), make_pixel(folder)
    chart = {"data": [{"type": "scatter", "x": list(words), "y": [1] * len(words), "name": text, "text": list(words)}]}
    figure = Figure(text, text, {**chart, "layout": {"title": text, "annotations": [{"text": text}]}}, text)
    section = Section(text, text, [Picture(text, text, pixel, text), figure])
    return write_sections(folder / "x.html", text, [section], about=text).read_text()


PAGES: dict[str, Callable[[Names, Path], str]] = {
    "report": make_report,
    "audit": make_audit_page,
    "texts": make_text_page,
    "fix": make_fix_page,
    "comparison": make_comparison,
    "sections": make_sections,
    "audit_html": lambda words, _: audit_html(make_audit(words)),
    "fix_html": lambda words, _: fix_html(make_repair(words)),
}


@pytest.mark.parametrize("page", PAGES)
def test_hostile_names_add_nothing_to_a_page(page: str, tmp_path: Path) -> None:
    compare(PAGES[page](PLAIN, tmp_path), PAGES[page](HOSTILE, tmp_path))


def run(*words: str) -> str:
    """Return what a command prints."""
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_hostile_files_and_columns_add_nothing_to_a_page_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pages = {}
    for kind, words in (("plain", PLAIN), ("hostile", HOSTILE)):
        valid = [word[:60].replace("/", "\u2215").replace("\x00", "") for word in words if "\ud800" not in word]
        rows = [["text", "y", *valid[:1]]]
        rows += [[word, valid[i % 3], valid[i % 2]] for i, word in enumerate(valid * 3)]
        with Path(f"{kind}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        for word in valid[:12]:
            Path(kind, word).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (4, 4), (i * 9, 0, 0)).save(Path(kind, word, f"{i}{word[:40]}.png"))
        table = ("--label", "y", "--text", "text", "--attribute", valid[0], "-D", "tokenizer=words")
        for source, words_of_source in ((f"{kind}.csv", table), (kind, ())):
            run("data", "show", source, *words_of_source, "--out", "d.html", "--quiet")
            pages[kind, source[-4:]] = Path("d.html").read_text()
            assert json.loads(run("data", "describe", source, *words_of_source, "--json", "--quiet"))
            shown = run("data", "describe", source, *words_of_source, "--quiet")
            assert not set(shown) & {"\x1b", "\x07", "\x08", "\u202e"}
    compare(pages["plain", ".csv"], pages["hostile", ".csv"])
    compare(pages["plain", "lain"], pages["hostile", "tile"])
