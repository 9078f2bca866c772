"""``spurless data show``: the right examples of the right groups, the same for the same seed, and no others read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from spurless.cli.data_show import MOST, cells_of, collect, corresponds
from spurless.core.groups import Groups
from spurless.data import load
from spurless.data.grouped import Grouped, Splits

Cli = Callable[..., Any]
Refused = Callable[..., None]
BIRDS = Groups(("landbird", "waterbird"), ("land", "water"))


class Source:
    """Pictures that are their own number, and a list of those that were read."""

    def __init__(self, n: int) -> None:
        self.n, self.read = n, list[int]()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> torch.Tensor:
        self.read.append(i)
        return torch.full((1, 64, 64), i % 256, dtype=torch.uint8)

    def fingerprint(self) -> str:
        return "pictures"


def whole(y: list[int], a: Any, groups: Groups, x: Any = None) -> Splits:
    labels = torch.tensor(y)
    split = Grouped(torch.arange(len(y)).float()[:, None] if x is None else x, labels, torch.as_tensor(a), groups)
    return Splits(split, split, split, "birds")


def numbers(example: Any) -> int:
    found = re.match(r"example (\d+)", example.caption)
    assert found
    return int(found[1])


def test_examples_are_of_their_group_and_drawn_by_seed() -> None:
    data = load("patched-digits", seed=0)
    sheet = collect(data, ("train", "test"), None, 0)
    for part in sheet.parts:
        split = getattr(data, part.name)
        assert part.count == len(split)
        for g, cell in enumerate(part.cells):
            assert cell.name == data.groups.name(g)
            assert cell.count == int(split.counts[g])
            chosen = [numbers(example) for example in cell.examples]
            assert len(set(chosen)) == min(8, cell.count)
            assert set(split.g[chosen].tolist()) == {g}
            assert cell.aligned == (g in (0, 3))
    assert collect(data, ("train", "test"), None, 0) == sheet
    other = collect(data, ("train",), None, 1).parts[0].cells[0].examples
    assert other != sheet.parts[0].cells[0].examples


def test_of_a_streamed_split_only_what_is_shown_is_read() -> None:
    source = Source(1000)
    data = whole([i % 2 for i in range(1000)], [i // 2 % 2 for i in range(1000)], BIRDS, source)
    sheet = collect(data, ("train",), 3, 0)
    shown = {numbers(example) for cell in sheet.parts[0].cells for example in cell.examples}
    assert len(shown) == 12
    assert set(source.read) - {0} <= shown  # the first one tells what an input is


def test_unknown_attributes_and_none_of_several_have_a_place() -> None:
    split = whole([0, 0, 1, 1], [0, -1, 1, -1], BIRDS).train
    found = {(cell.label, cell.attribute): cell.index.tolist() for cell in cells_of(split)}
    assert found["landbird", "land"] == [0]
    assert found["waterbird", "land"] == []
    assert found["landbird", "attribute unknown"] == [1]
    assert found["waterbird", "attribute unknown"] == [3]
    talk = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    split = whole([0, 0, 1], [[1, 1], [0, 0], [0, 1]], talk).train
    found = {(cell.label, cell.attribute): cell.index.tolist() for cell in cells_of(split)}
    assert found["civil", "male"] == found["civil", "female"] == [0]
    assert found["toxic", "female"] == [2]
    assert found["civil", "none of these"] == [1]
    assert ("toxic", "none of these") not in found


def test_crossed_attributes_and_classes_alone() -> None:
    faces = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old")})
    split = whole([1, 1, 0], [[1, 0], [0, 1], [-1, 0]], faces).train
    found = {(cell.label, cell.attribute): cell.index.tolist() for cell in cells_of(split)}
    assert found["yes", "m & young"] == [0]
    assert found["yes", "f & old"] == [1]
    assert found["no", "attribute unknown"] == [2]
    alone = list(cells_of(whole([1, 0, 1], [-1, -1, -1], Groups(("cat", "dog"))).train))
    assert [(cell.label, cell.attribute, cell.index.tolist()) for cell in alone] == [
        ("cat", "", [1]),
        ("dog", "", [0, 2]),
    ]


def test_groups_are_called_aligned_only_where_train_says_so() -> None:
    assert corresponds(whole([0, 0, 1, 1], [0, 0, 1, 0], BIRDS))
    assert not corresponds(whole([0, 0, 1, 1], [1, 1, 0, 1], BIRDS))  # the names are in another order
    assert not corresponds(whole([0, 0, 1, 1], [0, 1, 0, 1], BIRDS))  # nothing goes with anything
    assert not corresponds(whole([0, 1], [0, 2], Groups(("a", "b"), ("x", "y", "z"))))
    assert not corresponds(whole([0, 1], [-1, -1], BIRDS))
    assert not corresponds(whole([0, 1], [[1, 0], [0, 1]], Groups.overlapping(("a", "b"), ("x", "y"))))
    sheet = collect(whole([0, 0, 1, 1], [1, 1, 0, 1], BIRDS), ("train",), None, 0)
    assert {cell.aligned for cell in sheet.parts[0].cells} == {None}


def test_of_very_many_groups_the_largest_are_shown_once_each() -> None:
    n = MOST + 50
    labels = tuple(f"class {i}" for i in range(n))
    y = [*range(n), *range(n - 60, n)]
    sheet = collect(whole(y, [-1] * len(y), Groups(labels)), ("train",), None, 0)
    cells = sheet.parts[0].cells
    assert len(cells) == MOST
    assert {cell.label for cell in cells} >= set(labels[n - 60 :])
    assert all(len(cell.examples) == 1 for cell in cells)


def test_notes_of_the_data_are_on_the_page() -> None:
    data = replace(whole([0, 1], [0, 1], BIRDS), notes=("This is not the whole.",))
    assert collect(data, ("train",), None, 0).notes == ("This is not the whole.",)


def test_command_writes_the_page_and_prints_its_path(cli: Cli, here: Path) -> None:
    said = cli("data", "show", "patched-digits", "--part", "all", "--per-group", 2)
    assert (said.status, said.err) == (0, "")
    assert said.out == f"{here / 'sheet.html'}\n"
    text = (here / "sheet.html").read_text()
    assert text.count("<img ") == 3 * 4 * 2
    assert all(f">{word}</h2>" in text for word in ("Train", "Val", "Test"))


def test_names_of_own_folders_are_escaped(cli: Cli, here: Path) -> None:
    for label in ("<b>cow", "верблюд"):
        for place in ("<script>", "à l'eau & co"):
            for number in range(4):
                path = here / "own" / label / place / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((9, 30), 40 * number, dtype=np.uint8)).save(path)
    assert cli("data", "show", "own", "--out", "own.html").status == 0
    text = (here / "own.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;cow, &lt;script&gt;" in text
    assert "<script" not in text
    assert "верблюд, à l&#39;eau &amp; co" in text


def test_numbers_of_a_table_have_their_columns(cli: Cli, csv: Any, here: Path) -> None:
    words = ("--label", "y", "--attribute", "place", "--split", "split", "--features", "x2,x1")
    assert cli("data", "show", csv(), *words, "--part", "test").status == 0
    text = (here / "sheet.html").read_text()
    assert '<bdi>x2</bdi></th><th scope="col"><bdi>x1</bdi>' in text
    assert ">Test</h2>" in text
    assert ">Train</h2>" not in text


def test_what_cannot_be_shown_is_refused_and_no_page_is_left(refused: Refused, here: Path, folder: Path) -> None:
    refused(r"No split is called 'valid'\. Did you mean 'val'", "data", "show", "planted", "--part", "valid")
    refused(r"'gone' is no dataset's name", "data", "show", "gone")
    refused(r"per-group", "data", "show", "planted", "--per-group", 0)
    refused(r"cannot write here", "data", "show", "planted", "--out", folder)
    for path in folder.rglob("*.png"):
        path.write_bytes(b"no picture")
    refused(r"\.png: the image cannot be read", "data", "show", folder)
    assert not (here / "sheet.html").exists()


def test_torch_is_not_imported_for_help() -> None:
    import subprocess
    import sys

    code = "import sys; sys.argv = ['spurless', 'data', 'show', '--help']; from spurless.cli import main\n"
    code += "try:\n    main()\nfinally:\n    assert not {'torch', 'PIL', 'jinja2'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
