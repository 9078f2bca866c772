"""Names: an example is found again by its file, its row or its words, however it was chosen; keys stay."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.data.loaders.csv import from_csv
from spurless.data.loaders.folder import from_folder
from spurless.data.loaders.text import from_texts
from spurless.data.split import ExampleIds, Split, Splits

PARTS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twenty images; the red of each is its number, and so is its file."""
    for number in range(20):
        path = tmp_path / "pets" / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(path)
    return tmp_path / "pets"


def red(split: Split, row: int) -> int:
    return int(split.x[row][0, 0, 0])  # type: ignore[index]  # images


def names_of(data: Splits) -> list[str | None]:
    return [split.names[i] for split in parts_of(data) if split.names is not None for i in range(len(split))]


def parts_of(data: Splits) -> list[Split]:
    return [getattr(data, part) for part in PARTS]


@pytest.mark.parametrize(
    "reading", [{"stream": False}, {"stream": True}, {"cache": True}, {"cache": True, "stream": True}]
)
def test_a_file_is_known_however_images_are_held(pictures: Path, reading: dict[str, bool]) -> None:
    data = from_folder(pictures, **reading)  # type: ignore[arg-type]  # switches
    assert len(names_of(data)) == 20
    for split in parts_of(data):
        for row in range(len(split)):
            assert split.names is not None
            name = split.names[row]
            assert name == str(pictures / data.groups.labels[int(split.y[row])] / f"{red(split, row)}.png")


def test_names_are_selected_with_their_examples(pictures: Path) -> None:
    train = from_folder(pictures).train
    part = train.select(torch.tensor([5, 2, 9])).select(torch.tensor([False, True, True])).to("cpu").hide_labels()
    assert part.names is not None
    assert [part.names[i] for i in range(2)] == [train.names[i] for i in (2, 9)]  # type: ignore[index]  # named
    assert Path(str(part.names[1])).stem == str(red(part, 1))


def test_methods_get_no_names_of_files(pictures: Path) -> None:
    visible = from_folder(pictures).visible(train_attributes=False, val_labels=True, val_attributes=False)
    assert (visible.train.names, visible.val.names) == (None, None)


def test_names_are_in_no_fingerprint(pictures: Path) -> None:
    data = from_folder(pictures)
    assert replace(data.train, names=None).fingerprint() == data.train.fingerprint()
    pictures.rename(pictures.with_name("moved"))
    assert from_folder(pictures.with_name("moved")).fingerprint() == data.fingerprint()


def test_a_table_of_images_calls_them_as_it_does_and_others_by_their_row(pictures: Path, tmp_path: Path) -> None:
    rows = [f"{'cat' if n % 2 else 'dog'}/{n}.png,{'cat' if n % 2 else 'dog'},{n}" for n in range(20)]
    table = tmp_path / "meta.csv"
    table.write_text("path,kind,x\n" + "\n".join(rows[:7]) + "\n\n" + "\n".join(rows[7:]) + "\n")  # row 9 is blank
    images = from_csv(table, label="kind", root=pictures)
    assert sorted(map(str, names_of(images))) == sorted(row.split(",")[0] for row in rows)
    numbers = from_csv(table, label="kind", features=["x"])
    for split in parts_of(numbers):
        assert isinstance(split.x, Tensor)
        for row, (x,) in enumerate(split.x.tolist()):
            assert split.names is not None
            assert split.names[row] == f"meta.csv, row {int(x) + 2 + (x >= 7)}"


def test_texts_are_kept_as_they_were_written(tmp_path: Path) -> None:
    texts = [f"Film {n} was {'Good' if n % 2 else 'BAD'}!" for n in range(20)]
    kinds = [n % 2 for n in range(20)]
    data = from_texts(texts, kinds, tokenizer="words")
    assert data.val.names is not None
    assert {data.val.names.text(i) for i in range(len(data.val))} <= set(texts)
    assert data.val.names[0] is None
    for row in range(len(data.val)):
        assert ("Good" in str(data.val.names.text(row))) == bool(data.val.y[row])
    pairs = from_texts(texts, kinds, pairs=texts[::-1], tokenizer="words").test
    assert pairs.names is not None
    assert " / Film" in str(pairs.names.text(0))
    table = tmp_path / "films.csv"
    table.write_text("said,kind\n" + "\n".join(f"{t},{k}" for t, k in zip(texts, kinds, strict=True)))
    own = from_csv(table, text="said", label="kind", tokenizer="words").test
    assert own.names is not None
    number = int(str(own.names[1]).removeprefix("films.csv, row "))
    assert own.names.text(1) == texts[number - 2]


def test_a_choice_shares_what_all_are_called() -> None:
    every = ExampleIds.of_files(f"{n}.png" for n in range(1000))
    some = every.select(torch.arange(0, 1000, 2))
    assert some.files is every.files
    assert (len(some), some[499]) == (500, "998.png")
