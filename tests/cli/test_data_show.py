"""``spurless data show``: which examples of which groups are on the page, and how each is rendered."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.cli.data_show import (
    MAX_GROUPS,
    attributes_match_classes,
    build_page,
    choose_renderer,
    encode_png,
    list_groups,
    token_ids,
)
from spurless.core.groups import Groups
from spurless.data import load
from spurless.data.loaders.text import from_texts
from spurless.data.split import Split, Splits

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
    split = Split(torch.arange(len(y)).float()[:, None] if x is None else x, labels, torch.as_tensor(a), groups)
    return Splits(split, split, split, "birds")


def numbers(example: Any) -> int:
    found = re.match(r"example (\d+)", example.caption)
    assert found
    return int(found[1])


def test_examples_are_of_their_group_and_drawn_by_seed() -> None:
    data = load("patched-digits", seed=0)
    sheet = build_page(data, ("train", "test"), None, 0)
    for part in sheet.splits:
        split = getattr(data, part.name)
        assert part.count == len(split)
        for g, cell in enumerate(part.groups):
            assert cell.name == data.groups.name(g)
            assert cell.count == int(split.counts[g])
            chosen = [numbers(example) for example in cell.examples]
            assert len(set(chosen)) == min(8, cell.count)
            assert set(split.g[chosen].tolist()) == {g}
            assert cell.aligned == (g in (0, 3))
    assert build_page(data, ("train", "test"), None, 0) == sheet
    other = build_page(data, ("train",), None, 1).splits[0].groups[0].examples
    assert other != sheet.splits[0].groups[0].examples


def test_of_a_streamed_split_only_what_is_shown_is_read() -> None:
    source = Source(1000)
    data = whole([i % 2 for i in range(1000)], [i // 2 % 2 for i in range(1000)], BIRDS, source)
    sheet = build_page(data, ("train",), 3, 0)
    shown = {numbers(example) for cell in sheet.splits[0].groups for example in cell.examples}
    assert len(shown) == 12
    assert set(source.read) - {0} <= shown  # the first one tells what an input is


def test_unknown_attributes_and_none_of_several_have_a_place() -> None:
    split = whole([0, 0, 1, 1], [0, -1, 1, -1], BIRDS).train
    found = {(cell.label, cell.attribute): cell.index.tolist() for cell in list_groups(split)}
    assert found["landbird", "land"] == [0]
    assert found["waterbird", "land"] == []
    assert found["landbird", "attribute unknown"] == [1]
    assert found["waterbird", "attribute unknown"] == [3]
    talk = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    split = whole([0, 0, 1], [[1, 1], [0, 0], [0, 1]], talk).train
    found = {(cell.label, cell.attribute): cell.index.tolist() for cell in list_groups(split)}
    assert found["civil", "male"] == found["civil", "female"] == [0]
    assert found["toxic", "female"] == [2]
    assert found["civil", "none of these"] == [1]
    assert ("toxic", "none of these") not in found


def test_crossed_attributes_and_classes_alone() -> None:
    faces = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old")})
    split = whole([1, 1, 0], [[1, 0], [0, 1], [-1, 0]], faces).train
    found = {(cell.label, cell.attribute): cell.index.tolist() for cell in list_groups(split)}
    assert found["yes", "m & young"] == [0]
    assert found["yes", "f & old"] == [1]
    assert found["no", "attribute unknown"] == [2]
    alone = list(list_groups(whole([1, 0, 1], [-1, -1, -1], Groups(("cat", "dog"))).train))
    assert [(cell.label, cell.attribute, cell.index.tolist()) for cell in alone] == [
        ("cat", "", [1]),
        ("dog", "", [0, 2]),
    ]


def test_groups_are_called_aligned_only_where_train_says_so() -> None:
    assert attributes_match_classes(whole([0, 0, 1, 1], [0, 0, 1, 0], BIRDS))
    assert not attributes_match_classes(whole([0, 0, 1, 1], [1, 1, 0, 1], BIRDS))  # the names are in another order
    assert not attributes_match_classes(whole([0, 0, 1, 1], [0, 1, 0, 1], BIRDS))  # nothing goes with anything
    assert not attributes_match_classes(whole([0, 1], [0, 2], Groups(("a", "b"), ("x", "y", "z"))))
    assert not attributes_match_classes(whole([0, 1], [-1, -1], BIRDS))
    assert not attributes_match_classes(whole([0, 1], [[1, 0], [0, 1]], Groups.overlapping(("a", "b"), ("x", "y"))))
    sheet = build_page(whole([0, 0, 1, 1], [1, 1, 0, 1], BIRDS), ("train",), None, 0)
    assert {cell.aligned for cell in sheet.splits[0].groups} == {None}


def test_of_very_many_groups_the_largest_are_shown_once_each() -> None:
    n = MAX_GROUPS + 50
    labels = tuple(f"class {i}" for i in range(n))
    y = [*range(n), *range(n - 60, n)]
    sheet = build_page(whole(y, [-1] * len(y), Groups(labels)), ("train",), None, 0)
    cells = sheet.splits[0].groups
    assert len(cells) == MAX_GROUPS
    assert {cell.label for cell in cells} >= set(labels[n - 60 :])
    assert all(len(cell.examples) == 1 for cell in cells)


def test_notes_of_the_data_are_on_the_page() -> None:
    data = replace(whole([0, 1], [0, 1], BIRDS), notes=("This is not the whole.",))
    assert build_page(data, ("train",), None, 0).notes == ("This is not the whole.",)


def test_command_writes_the_page_and_prints_its_path(cli: Cli, here: Path) -> None:
    result = cli("data", "show", "patched-digits", "--part", "all", "--per-group", 2)
    assert (result.status, result.err) == (0, "")
    assert result.out == f"{here / 'sheet.html'}\n"
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
    refused(r"'gone' is neither the name of a dataset", "data", "show", "gone")
    refused(r"per-group", "data", "show", "planted", "--per-group", 0)
    refused(r"cannot write", "data", "show", "planted", "--out", folder)
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


GROUPS = Groups(("no", "yes"))


def pixels(data: bytes) -> Any:
    return np.asarray(Image.open(BytesIO(data)))


def splits_of(x: Any, **options: Any) -> Splits:
    split = Split(x, torch.tensor([0, 1]), torch.tensor([-1, -1]), GROUPS)
    return Splits(split, split, split, options=options)


def test_small_picture_is_enlarged_pixel_by_pixel() -> None:
    image = torch.randint(256, (3, 8, 8), dtype=torch.uint8)
    found = pixels(encode_png(image))
    assert found.shape == (64, 64, 3)
    assert (found[::8, ::8] == image.permute(1, 2, 0).numpy()).all()
    assert (found[3::8, 7::8] == image.permute(1, 2, 0).numpy()).all()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 28, 28), (84, 84)),  # height, width; grey
        ((3, 64, 64), (64, 64, 3)),
        ((3, 100, 30), (200, 60, 3)),  # not square: no side beyond what a page has room for
        ((3, 4, 300), (2, 144, 3)),
        ((3, 288, 144), (144, 72, 3)),
        ((1, 200, 200), (144, 144)),
    ],
)
def test_picture_keeps_its_form(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert pixels(encode_png(torch.zeros(shape, dtype=torch.uint8))).shape == expected


def test_pixels_of_any_range_become_visible() -> None:
    shares = torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 3).expand(1, 64, 3)
    assert pixels(encode_png(shares))[0, [0, 6, -1]].tolist() == [0, 128, 255]
    assert pixels(encode_png(shares * 40 - 20))[0, [0, 6, -1]].tolist() == [0, 128, 255]
    assert pixels(encode_png(torch.full((1, 64, 64), 7.0))).max() == 0  # nothing to see, and no error


def test_kind_of_example_follows_the_inputs() -> None:
    picture = choose_renderer(splits_of(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)))
    assert picture.facts == (("Input", "grey image, 8 x 8 pixels, uint8"),)
    assert picture.render(splits_of(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).train, 1).png
    numbers = splits_of(torch.tensor([[0.123456, 2.0], [3.0, -1e9]]), features=["core", "spurious"])
    row = choose_renderer(numbers)
    assert row.columns == ("core", "spurious")
    assert row.render(numbers.train, 1).values == ("3", "-1e+09")
    assert row.render(numbers.train, 0).values == ("0.1235", "2")


def test_long_rows_and_odd_tensors_show_their_first_numbers() -> None:
    for x in (torch.arange(80.0).view(2, 40), torch.arange(80.0).view(2, 5, 2, 4)):
        row = choose_renderer(splits_of(x))
        assert row.columns == tuple(f"x{i}" for i in range(12))
        assert row.render(splits_of(x).train, 1).values[:2] == ("40", "41")
        assert row.facts[-1] == ("Shown", "the first 12 numbers of each example")


def test_tokens_without_a_tokenizer_are_numbers_and_the_page_says_so() -> None:
    x = {"input_ids": torch.tensor([[5, 6, 0], [7, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}
    for options in ({}, {"tokenizer": "/no/such/folder"}):
        text = choose_renderer(splits_of(x, **options))
        assert text.render(splits_of(x).train, 0).text == "5 6"
        assert "token numbers" in text.notes[0]
    assert token_ids(splits_of(x).train, 1) == [7]
    assert token_ids(splits_of({"tokens": x["input_ids"]}).train, 1) == [7, 0, 0]


def test_tokens_become_words_where_the_tokenizer_is_to_be_had(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "nobody", "doubts"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    ids = torch.tensor([[2, 5, 6, 3], [2, 5, 3, 0]])
    x = {"input_ids": ids, "attention_mask": (ids > 0).int()}
    text = choose_renderer(splits_of(x, tokenizer=str(tmp_path)))
    assert text.notes == ()
    assert text.render(splits_of(x).train, 1).text == "[CLS] nobody [SEP]"
    assert text.render(splits_of(x).train, 1).caption == "example 1, 3 tokens"


def test_own_texts_are_shown_as_they_were_given_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the tokenizer 'words' is no name on the hub")

    monkeypatch.setattr("spurless.core.hf_files.open_pretrained", refuse)
    texts = ["Never, ever!", "so good"] * 10
    data = from_texts(texts, [0, 1] * 10, tokenizer="words")
    maker = choose_renderer(data)
    assert {maker.render(data.train, i).text for i in range(len(data.train))} == set(texts)
    assert maker.render(data.train, 0).caption in ("example 0, 6 tokens", "example 0, 4 tokens")
    ids = {"input_ids": torch.tensor([[5, 6], [7, 0]])}
    assert choose_renderer(splits_of(ids, tokenizer="words")).render(splits_of(ids).train, 0).text == "5 6"


def test_a_dataset_with_words_of_its_own_is_shown_in_them() -> None:
    from spurless.data import load

    data = load("negated-claims")
    maker = choose_renderer(data)
    text = maker.render(data.train, 0).text
    assert text is not None
    assert text.startswith("the ")
    assert "[sep]" in text
    assert maker.notes == ()
