"""Tables: every row keeps its label, and every bad cell is named by row and column."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, shuffled_order
from spurless.data.loaders.csv import from_csv
from spurless.data.split import Split, Splits


def write(path: Path, *lines: str, newline: str = "\n", encoding: str = "utf-8") -> Path:
    path.write_bytes((newline.join(lines) + newline).encode(encoding))
    return path


def every(splits: Splits) -> list[Split]:
    return [splits.train, splits.val, splits.test]


def first(split: Split) -> list[int]:
    """Return the first number of every example, which tells its row here."""
    assert isinstance(split.x, Tensor)
    return [int(v) for v in split.x.flatten(1)[:, 0]]


def numbers(folder: Path, n: int = 40) -> Path:
    rows = [f"{i},{i / 8},{'cat' if i % 2 else 'big dog'},{'in' if i % 4 < 2 else 'out'}" for i in range(n)]
    return write(folder / "n.csv", "i,weight,kind,place", *rows)


def pictures(folder: Path, n: int = 12) -> Path:
    (folder / "bilder ä").mkdir()
    rows = []
    for i in range(n):
        Image.fromarray(np.full((4, 4, 3), i, np.uint8)).save(folder / "bilder ä" / f"{i}.png")
        rows.append(f"bilder ä/{i}.png,{i % 2},{'water' if i % 3 else ''},{i % 3}")
    return write(folder / "m.csv", "img_filename,y,place,split", *rows)


def test_a_table_of_numbers_keeps_labels_attributes_and_values(tmp_path: Path) -> None:
    data = from_csv(numbers(tmp_path), label="kind", attribute="place", seed=5)
    assert data.name == "table n.csv"
    assert (data.options["label"], data.options["attribute"], data.options["seed"]) == ("kind", ["place"], 5)
    assert data.groups.names == ("big dog, in", "big dog, out", "cat, in", "cat, out")
    assert [split.counts.tolist() for split in every(data)] == [[7] * 4, [2] * 4, [1] * 4]
    assert sorted(i for split in every(data) for i in first(split)) == list(range(40))
    for split in every(data):
        assert isinstance(split.x, Tensor)
        assert split.x.dtype == torch.float32
        assert split.x.tolist() == [[i, i / 8] for i in first(split)]
        assert split.y.tolist() == [i % 2 for i in first(split)]
        assert split.a.tolist() == [i % 4 // 2 for i in first(split)]


def test_features_choose_columns_and_their_order(tmp_path: Path) -> None:
    data = from_csv(numbers(tmp_path), label="kind", features=["weight", "i"])
    assert isinstance(data.train.x, Tensor)
    assert (data.train.x[:, 0] * 8).tolist() == data.train.x[:, 1].tolist()
    assert (data.train.a == -1).all()
    assert data.groups.attributes == ()


def test_several_attributes_are_crossed_and_an_empty_cell_is_unknown(tmp_path: Path) -> None:
    rows = [f"{i},{i % 2},{'ab'[i % 2]},{'' if i == 0 else 'u'}" for i in range(12)]
    data = from_csv(write(tmp_path / "t.csv", "x,y,p,q", *rows), label="y", attribute=("p", "q"))
    assert (data.groups.attributes, data.groups.sizes) == (("a & u", "b & u"), (2, 1))
    everything = {i: a for split in every(data) for i, a in zip(first(split), split.a.tolist(), strict=True)}
    assert everything == {i: [i % 2, -1 if i == 0 else 0] for i in range(12)}


def test_a_bom_crlf_quotes_blank_lines_and_another_delimiter_are_understood(tmp_path: Path) -> None:
    rows = [f'"{"naïve; 猫" if i % 2 else "plain"}";{i}' for i in range(8)]
    path = write(tmp_path / "w.csv", "label ; x", *rows[:4], "", *rows[4:], newline="\r\n", encoding="utf-8-sig")
    data = from_csv(path, label="label", delimiter=";")
    assert data.groups.labels == ("naïve; 猫", "plain")
    assert sorted(i for split in every(data) for i in first(split)) == list(range(8))
    assert all(split.y.tolist() == [1 - i % 2 for i in first(split)] for split in every(data))


def test_the_index_that_pandas_writes_is_no_feature(tmp_path: Path) -> None:
    rows = [f"{i},{i},{i % 2}" for i in range(8)]
    data = from_csv(write(tmp_path / "p.csv", ",x,y", *rows), label="y")
    assert data.train.x.shape[1:] == (1,)  # type: ignore[union-attr]


@pytest.mark.parametrize("names", [("0", "1", "2"), ("train", "val", "test"), ("Train", "validation", "TEST")])
def test_a_split_column_says_where_each_row_goes(names: tuple[str, ...], tmp_path: Path) -> None:
    rows = [f"{i},{i % 2},{names[i // 4]}" for i in range(12)]
    data = from_csv(write(tmp_path / "s.csv", "x,y,part", *rows), label="y", split="part")
    assert [first(split) for split in every(data)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_missing_val_is_cut_from_train(tmp_path: Path) -> None:
    rows = [f"{i},{i % 2},{'test' if i < 4 else 'train'}" for i in range(44)]
    data = from_csv(write(tmp_path / "s.csv", "x,y,part", *rows), label="y", split="part")
    assert first(data.test) == [0, 1, 2, 3]
    assert data.val.class_counts.tolist() == [3, 3]  # 15 % of 20


def test_a_table_of_images_gives_each_file_its_row(tmp_path: Path) -> None:
    data = from_csv(pictures(tmp_path), label="y", attribute="place", split="split")
    assert data.options["file"] == "img_filename"
    assert [first(split) for split in every(data)] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert all(split.y.tolist() == [i % 2 for i in first(split)] for split in every(data))
    assert [split.a.tolist() for split in every(data)] == [[-1] * 4, [0] * 4, [0] * 4]


def test_root_and_file_may_be_given(tmp_path: Path) -> None:
    pictures(tmp_path)
    path = write(tmp_path / "o.csv", "foto,y", *(f"{i}.png,{i % 2}" for i in range(12)))
    data = from_csv(path, label="y", root=tmp_path / "bilder ä", file="foto", size=2)
    assert data.train.x.shape[1:] == (3, 2, 2)  # type: ignore[union-attr]
    assert sorted(i for split in every(data) for i in first(split)) == list(range(12))


def test_features_make_a_table_with_a_path_column_one_of_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "f.csv", "path,x,y", *(f"gone.png,{i},{i % 2}" for i in range(8)))
    assert from_csv(path, label="y", features=["x"]).train.x.shape[1:] == (1,)  # type: ignore[union-attr]


def test_with_the_cache_it_is_the_same_data_and_the_same_run(tmp_path: Path) -> None:
    path = pictures(tmp_path)
    without, kept = (from_csv(path, label="y", split="split", cache=cache) for cache in (False, True))
    assert kept.fingerprint() == without.fingerprint()
    assert kept.options == without.options
    streamed = from_csv(path, label="y", split="split", cache=True, stream=True)
    for held, mapped in zip(every(without), every(streamed), strict=True):
        assert mapped.streamed
        assert torch.equal(mapped.example(9), held.example(9))  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_and_resident_give_the_same_batches(workers: int, tmp_path: Path) -> None:
    path = pictures(tmp_path, 30)
    held, streamed = (from_csv(path, label="y", split="split", stream=stream) for stream in (False, True))
    assert (held.train.streamed, streamed.train.streamed) == (False, True)
    loaders = [
        Loader(d.train, shuffled_order(len(d.train), Seeds(0)), batch_size=4, workers=workers) for d in (held, streamed)
    ]
    for one, other in zip(loaders[0].batches(), loaders[1].batches(), strict=True):
        assert isinstance(one.x, Tensor)
        assert isinstance(other.x, Tensor)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


def test_fifty_thousand_rows_load(tmp_path: Path) -> None:
    path = write(tmp_path / "big.csv", "a,b,c,d,y", *(f"{i % 1000},1.5,-2e3,0,{i % 5}" for i in range(50_000)))
    data = from_csv(path, label="y")
    assert [len(split) for split in every(data)] == [35_000, 7_500, 7_500]
    assert data.train.class_counts.tolist() == [7_000] * 5


@pytest.mark.parametrize(
    ("header", "rows", "options", "message"),
    [
        ("x,y", ["1,0"], {"label": "Y"}, r"t.csv: no column is called 'Y'. Did you mean 'y'\? Columns: x, y\."),
        ("x,y", ["1,0"], {"attribute": "plaice"}, r"no column is called 'plaice'. Columns: x, y\."),
        ("x,y", ["1,0"], {"split": "part"}, r"no column is called 'part'"),
        ("x,y", ["1,0"], {"features": ["z"]}, r"no column is called 'z'"),
        ("x,y", ["1,0"], {"file": "foto"}, r"no column is called 'foto'"),
        ("x,y", ["1,0"], {"root": "."}, r"t.csv: the file has no column of file names. Set it with file="),
        ("x,y,x", ["1,0,1"], {}, r"t.csv, row 1: two columns are called 'x'"),
        ("", [], {}, r"t.csv: the file has no header"),
        ("x,y", [], {}, r"t.csv: the file has no rows below the header"),
        ("y", ["0"], {}, r"the file has no column of features"),
        ("x,y", ["1,0"], {"features": ["x", "y"]}, r"the label 'y' is among the features"),
        ("x,y", ["1,0"], {"features": ["x"], "file": "x"}, r"file and features are both given"),
        ("x,y", ["1,0"], {"delimiter": ",,"}, r"the delimiter must be one character \(got ',,'\)"),
        ("x,y", ["1,0", "1, "], {}, r"t.csv, row 3: the label is empty"),
        ("x,y", ["1,0", "", ",1"], {}, r"t.csv, row 4, column 'x': the feature is empty"),
        ("w,x,y", ["1,1,0", "2,nan,1"], {}, r"t.csv, row 3, column 'x': 'nan' is not a finite number"),
        ("w,x,y", ["1,much,0"], {}, r"t.csv, row 2, column 'x': 'much' is not a finite number.*features="),
        ("w,x,y", ["1,1e300,0"], {}, r"t.csv, row 2, column 'x': '1e300' is not a finite number"),
        (
            "x,y",
            ["1,0", '"1\n",0', "1"],
            {},
            r"t.csv, row 4: the row has the wrong number of cells \(expected 2, got 1",
        ),
        ("x,y,s", ["1,0,0", "1,0,3"], {"split": "s"}, r"t.csv, row 3: the split '3' is unknown"),
        ("x,y,s", ["1,0,tset"], {"split": "s"}, r"t.csv, row 2: the split 'tset' is unknown"),
        ("x,y,a", ["1,0,", "1,1,"], {"attribute": "a"}, r"the attribute 'a' is always empty"),
        ("x,y", ["1,0"] * 9, {}, r"the data have only one class"),
        (
            "x,y",
            ["1,0", "1,1"],
            {},
            r"table t.csv: no class has enough examples for every .*got 2 examples of 2 classes",
        ),
        ("path,y", ["gone.png,1"], {}, r"t.csv, row 2: no such image file: .*gone.png"),
        ("path,y", [" ,1"], {}, r"t.csv, row 2: the file name is empty"),
        ("path,y", ["x.png,1"], {"root": "nowhere"}, r"nowhere: no such folder"),
    ],
)
def test_a_bad_table_is_answered_with_a_sentence(
    header: str, rows: list[str], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        from_csv(write(tmp_path / "t.csv", header, *rows), **{"label": "y", **options})


def absolute(outside: Path, _: Path) -> str:
    return str(outside / "secret.png")


def upwards(_: Path, __: Path) -> str:
    return "../outside/secret.png"


def hidden_upwards(_: Path, root: Path) -> str:
    (root / "sub").mkdir()
    return "sub/../../outside/secret.png"


def linked_file(outside: Path, root: Path) -> str:
    (root / "x.png").symlink_to(outside / "secret.png")
    return "x.png"


def linked_folder(outside: Path, root: Path) -> str:
    (root / "sub").symlink_to(outside)
    return "sub/secret.png"


@pytest.mark.parametrize("escape", [absolute, upwards, hidden_upwards, linked_file, linked_folder])
def test_a_path_that_leaves_its_root_is_refused(escape: Callable[[Path, Path], str], tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    Image.new("RGB", (2, 2)).save(outside / "secret.png")
    path = write(root / "t.csv", "path,y", f"{escape(outside, root)},1")
    with pytest.raises(
        InputError, match=r"t.csv, row 2: the path '(.*secret|x).png' leaves the root folder \(expected .*root\)"
    ):
        from_csv(path, label="y")


def test_a_link_that_stays_inside_its_root_is_fine(tmp_path: Path) -> None:
    path = pictures(tmp_path)
    (tmp_path / "bilder ä" / "0.png").rename(tmp_path / "kept.png")
    (tmp_path / "bilder ä" / "0.png").symlink_to(os.path.relpath(tmp_path / "kept.png", tmp_path / "bilder ä"))
    assert first(from_csv(path, label="y", split="split").train) == [0, 3, 6, 9]


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no.csv: no such file \(expected a CSV file\)"):
        from_csv(tmp_path / "no.csv", label="y")
    with pytest.raises(InputError, match=r"l.csv: the file is not UTF-8"):
        from_csv(write(tmp_path / "l.csv", "x,y", "1,é", encoding="latin-1"), label="y")
    with pytest.raises(InputError, match=r"f.csv: the file is not CSV: field larger than field limit"):
        from_csv(write(tmp_path / "f.csv", "x,y", "1," + "z" * 200_000), label="y")


def test_bare_numbers_are_given_the_name_of_their_column(tmp_path: Path) -> None:
    rows = [f"{i},{i % 2},{i // 2 % 2},{'ab'[i % 2]}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y,place,kind", *rows]))
    numbers = from_csv(tmp_path / "t.csv", label="y", attribute="place", features=["x"])
    assert numbers.groups.names == ("y 0, place 0", "y 0, place 1", "y 1, place 0", "y 1, place 1")
    words = from_csv(tmp_path / "t.csv", label="kind", features=["x"])
    assert words.groups.labels == ("a", "b")


def test_a_file_listed_in_train_and_in_test_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(tmp_path / "a b é.png")
    path = write(
        tmp_path / "t.csv", "file,kind,fold", "a b é.png,big dog,train", "", "a b é.png,big dog,test",
        newline="\r\n", encoding="utf-8-sig",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"t.csv, rows 2 and 4: the file 'a b é.png' is listed twice and is in two"):
        from_csv(path, label="kind", split="fold")


def test_a_table_of_texts_keeps_its_words_labels_and_splits(tmp_path: Path) -> None:
    rows = [
        f"{i},the film was {'good' if i % 2 else 'bad'},{'web' if i % 4 < 2 else 'print'},why {i}" for i in range(40)
    ]
    path = write(tmp_path / "t.csv", "id,review,source,question", *rows)
    data = from_csv(path, label="source", text="review", tokenizer="words", max_length=8)
    assert isinstance(data.train.x, dict)
    lengths = data.train.x["attention_mask"].sum(dim=1)
    assert set(lengths.tolist()) == {6}  # two marks and four words
    assert data.groups.labels == ("print", "web")
    assert data.options["tokenizer"] == "words"
    pairs = from_csv(path, label="source", text=("review", "question"), tokenizer="words", max_length=16)
    assert isinstance(pairs.train.x, dict)
    assert set(pairs.train.x["token_type_ids"].sum(dim=1).tolist()) == {3}  # why, the number, the mark


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"text": "words"}, r"t.csv: no column is called 'words'"),
        ({"text": ("review",) * 3}, r"t.csv: text must be one column or two"),
        ({"text": "review", "features": ["mark"]}, r"text and features are both given"),
        ({"text": "review", "root": "."}, r"text and root are both given"),
    ],
)
def test_what_is_no_table_of_texts_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "t.csv", "mark,review,source", "1,good,web", "0,bad,print")
    with pytest.raises(InputError, match=said):
        from_csv(path, label="source", tokenizer="words", **options)


@pytest.mark.parametrize("word", ["nan", "NaN", ""])
def test_a_label_that_is_nothing_is_refused_and_an_attribute_is_unknown(tmp_path: Path, word: str) -> None:
    lines = [f"{i},{'cat' if i % 2 else 'dog'},{'in' if i % 3 else word}" for i in range(40)]
    data = from_csv(write(tmp_path / "t.csv", "x,y,a", *lines), label="y", attribute="a", features=["x"])
    assert data.groups.attributes == ("in",)
    with pytest.raises(InputError, match=r"t\.csv, row 42: the label is empty"):
        from_csv(write(tmp_path / "t.csv", "x,y,a", *lines, f"1,{word},in"), label="y", features=["x"])


def test_a_column_is_label_or_attribute(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y", *(f"{i},{i % 2}" for i in range(40)))
    with pytest.raises(InputError, match=r"t\.csv: the column 'y' is both label and attribute"):
        from_csv(path, label="y", attribute="y")


def test_semicolons_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x;y", "1;0")
    with pytest.raises(
        InputError,
        match=r"no column is called 'y'\. .*a semicolon: pass delimiter=';' \(-D 'delimiter=;'",
    ):
        from_csv(path, label="y")
