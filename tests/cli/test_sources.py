"""Sources: what is typed after ``--data`` and ``--model`` becomes splits and a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spurless.cli.sources import (
    Columns,
    build_model,
    files_read,
    named_options,
    noting_what_is_missing,
    open_data,
)
from spurless.core.errors import BadInput, Incomplete, SpurlessWarning
from spurless.data.grouped import Splits

Write = Callable[..., Path]


def shape(splits: Splits) -> tuple[int, ...]:
    example = splits.train.example()
    assert isinstance(example, torch.Tensor)
    return tuple(example.shape[1:])


def test_name_wins_over_a_folder_of_that_name(here: Path) -> None:
    (here / "planted").mkdir()
    assert open_data("planted", {"n_train": "50"}, Columns(), 0).name == "planted"


def test_seed_is_that_of_the_run_unless_the_data_have_their_own(here: Path) -> None:
    assert here.is_dir()
    first, same, other = (
        open_data("planted", {"n_train": 50, **options}, Columns(), seed).train.x
        for options, seed in (({}, 4), ({"seed": "4"}, 0), ({}, 0))
    )
    assert isinstance(first, torch.Tensor)
    assert isinstance(same, torch.Tensor)
    assert isinstance(other, torch.Tensor)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_columns_of_a_csv_are_the_ones_named(csv: Write) -> None:
    splits = open_data(str(csv()), {}, Columns("y", "place, x1", "split", "x2"), 0)
    assert shape(splits) == (1,)
    assert splits.groups.labels == ("cat", "dog")
    assert len(splits.groups.attributes) == 2 * 7


def test_images_take_the_size_said(folder: Path) -> None:
    assert shape(open_data(str(folder), {"size": 5}, Columns(), 0)) == (3, 5, 5)
    with pytest.raises(BadInput, match="option 'size' must be a whole number"):
        open_data(str(folder), {"size": [5]}, Columns(), 0)


def test_model_is_built_for_the_data(csv: Write) -> None:
    splits = open_data(str(csv()), {}, Columns("y", "place", "split"), 0)
    model = build_model("mlp", splits, 3, {"width": "4"})
    again = build_model("mlp", splits, 3, {"width": 4})
    assert (model.n_classes, model.n_features) == (2, 4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    with pytest.raises(BadInput, match="mlp has no option 'data'"):
        build_model("mlp", splits, 3, {"data": "x"})


def test_root_of_a_named_set_is_its_option(here: Path) -> None:
    assert named_options("waterbirds", {"size": "8"}, Columns(root=here)) == {"size": "8", "root": str(here)}
    assert named_options("waterbirds", {"root": "a"}, Columns(root=here))["root"] == str(here)
    assert named_options("waterbirds", {"root": "a"}, Columns()) == {"root": "a"}
    with pytest.raises(BadInput, match=r"dataset 'planted' needs no files \(got --root sets\)"):
        open_data("planted", {}, Columns(root=Path("sets")), 0)
    with pytest.raises(BadInput, match=r"are for CSV files \(got --data waterbirds\)"):
        open_data("waterbirds", {}, Columns(label="y", root=here), 0)


def test_pack_is_opened_with_its_own_columns(folder: Path) -> None:
    from spurless.data.pack import pack_folder

    pack_folder(folder, folder.parent / "p.npz")
    splits = open_data(str(folder.parent / "p.npz"), {"size": "5"}, Columns(attribute="split"), 0)
    assert shape(splits) == (3, 5, 5)
    assert splits.groups.labels == ("dark", "light")
    assert len(splits.groups.attributes) == 3
    with pytest.raises(BadInput, match=r"are for CSV files"):
        open_data(str(folder.parent / "p.npz"), {}, Columns(features="x"), 0)


def test_lazy_leaves_own_images_where_they_are(folder: Path) -> None:
    (folder / "light" / "7.png").write_bytes(b"no picture")
    splits = open_data(str(folder), {}, Columns(), 0, lazy=True)
    assert splits.train.streamed
    assert sum(map(len, (splits.train, splits.val, splits.test))) == 30
    with pytest.raises(BadInput, match=r"7\.png: the image cannot be read"):
        open_data(str(folder), {}, Columns(), 0)


def test_lazy_keeps_no_decoded_images_of_a_named_set_unless_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from spurless.data import DATASETS

    @dataclass(frozen=True)
    class Config:
        cache: bool | None = None
        seed: int = 0

    made: list[Config] = []
    row = DATASETS["planted"]

    def make(config: Config) -> Splits:
        made.append(config)
        splits: Splits = row.make(row.config(n_train=20))
        return splits

    monkeypatch.setitem(DATASETS, "planted", replace(row, config=Config, make=make))
    for options, lazy in (({}, False), ({}, True), ({"cache": "yes"}, True)):
        open_data("planted", options, Columns(), 0, lazy=lazy)
    assert [config.cache for config in made] == [None, False, True]


def test_loading_is_told_to_the_bar_unless_it_shall_be_quiet(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    from spurless.cli import sources
    from spurless.core.progress import teller
    from spurless.data import DATASETS

    heard: list[tuple[object, ...]] = []
    asked: list[bool] = []

    @contextmanager
    def bar(quiet: bool) -> Iterator[Any]:
        asked.append(quiet)
        yield None if quiet else lambda *told: heard.append(told)

    row = DATASETS["planted"]
    monkeypatch.setattr(sources, "progress_bar", bar)
    monkeypatch.setitem(
        DATASETS, "planted", replace(row, make=lambda config: teller("decode", 2, patience=0)(2) or row.make(config))
    )
    for quiet, rank in ((False, "0"), (True, "0"), (False, "1")):
        monkeypatch.setenv("LOCAL_RANK", rank)
        open_data("planted", {"n_train": 20}, Columns(), 0, quiet)
    assert asked == [False, True, True]
    assert heard == [("decode", 2, 2, "")]
    assert here.is_dir()


def test_what_is_missing_is_noted_and_other_warnings_go_on() -> None:
    passed: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: passed.append(str(message))
        with noting_what_is_missing() as missing:
            warnings.warn("Half of it.", Incomplete, stacklevel=1)
            warnings.warn("A trap.", SpurlessWarning, stacklevel=1)
    assert (missing, passed) == (["Half of it."], ["A trap."])


def test_files_are_said_for_own_named_and_embedded_data(folder: Path) -> None:
    own = open_data(str(folder), {}, Columns(), 0)
    birds = replace(own, options={"root": str(folder)})
    assert files_read(str(folder), own) == {"found": [], "place": str(folder)}
    assert files_read("planted", own) == {"found": [], "place": None}
    assert files_read("waterbirds", birds) == {"found": [], "place": str(folder)}
    (folder / "waterbirds").mkdir()
    (folder / "waterbirds" / "metadata.csv").write_text("")
    assert files_read("waterbirds", birds) == {"found": ["metadata.csv"], "place": str(folder / "waterbirds")}


@pytest.mark.parametrize(("words", "quiet"), [((), False), (("--quiet",), True), (("--json",), True)])
def test_fit_draws_no_bar_where_none_is_wanted(
    cli: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], quiet: bool
) -> None:
    from importlib import import_module

    asked: list[bool] = []

    def stop(source: str, options: Any, columns: Columns, seed: int, quiet: bool = False) -> Splits:
        asked.append(quiet)
        raise BadInput("stop", got=(source, options, columns, seed))

    monkeypatch.setattr(import_module("spurless.cli.fit"), "open_data", stop)
    assert cli("fit", "erm", *words).status == 2
    assert asked == [quiet]


def test_a_csv_of_texts_is_opened_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("review,kind\n" + "".join(f"good {i},{'a' if i % 2 else 'b'}\n" for i in range(20)))
    options = {"tokenizer": "words", "max_length": "8"}
    splits = open_data(str(path), options, Columns(label="kind", text="review"), 0, quiet=True)
    assert splits.options["max_length"] == 8
    assert isinstance(splits.train.x, dict)
    with pytest.raises(
        BadInput, match=r"own texts have no option 'size' \(expected tokenizer, max_length or delimiter\)"
    ):
        open_data(str(path), {"size": "8"}, Columns(label="kind", text="review"), 0, quiet=True)


def test_a_dataset_of_hugging_face_on_disk_is_opened_by_its_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    images = [Image.new("RGB", (8, 8), (i, 0, 0)) for i in range(40)]
    made = {"image": images, "label": [i % 2 for i in range(40)], "place": [i % 3 for i in range(40)]}
    table = datasets.Dataset.from_dict(made).cast_column("image", datasets.Image())
    datasets.DatasetDict({"train": table}).save_to_disk(tmp_path / "set")
    splits = open_data(str(tmp_path / "set"), {}, Columns(attribute="place"), seed=0, quiet=True)
    assert len(splits.train) + len(splits.val) + len(splits.test) == 40
    assert splits.train.has_attributes
    with pytest.raises(BadInput, match=r"no column is called 'kind'"):
        open_data(str(tmp_path / "set"), {}, Columns(label="kind"), seed=0, quiet=True)
    with pytest.raises(BadInput, match=r"set: a dataset of Hugging Face is read by --label, .* knows its own splits"):
        open_data(str(tmp_path / "set"), {}, Columns(split="place"), seed=0, quiet=True)


def test_texts_of_hugging_face_on_disk_are_opened_by_their_column(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = {"review": [f"good {i}" for i in range(40)], "kind": ["a" if i % 2 else "b" for i in range(40)]}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(made)}).save_to_disk(tmp_path / "set")
    columns = Columns(label="kind", text="review")
    splits = open_data(str(tmp_path / "set"), {"tokenizer": "words", "max_length": "8"}, columns, seed=0, quiet=True)
    assert splits.options["max_length"] == 8
    assert isinstance(splits.train.x, dict)
    assert len(splits.train) + len(splits.val) + len(splits.test) == 40
    with pytest.raises(BadInput, match=r"own texts have no option 'size'"):
        open_data(str(tmp_path / "set"), {"size": "8"}, columns, seed=0, quiet=True)


@pytest.mark.parametrize(("said", "character"), [(";", ";"), ("tab", "\t"), ("\\t", "\t"), ("|", "|")])
def test_cells_are_cut_where_the_user_says(csv: Write, here: Path, said: str, character: str) -> None:
    path = csv()
    other = here / "other.csv"
    other.write_text(path.read_text().replace(",", character))
    columns = Columns("y", "place", "split")
    as_usual, cut = open_data(str(path), {}, columns, 0), open_data(str(other), {"delimiter": said}, columns, 0)
    assert isinstance(as_usual.train.x, torch.Tensor)
    assert isinstance(cut.train.x, torch.Tensor)
    assert torch.equal(as_usual.train.x, cut.train.x)
    assert cut.groups == as_usual.groups
    texts = open_data(str(other), {"delimiter": said, "tokenizer": "words"}, replace(columns, text="place"), 0)
    assert len(texts.train) == len(cut.train)


def test_a_delimiter_is_one_character_and_of_a_table(csv: Write, folder: Path) -> None:
    for said in ("", ";;", '"'):
        with pytest.raises(BadInput, match="option 'delimiter' must be one character"):
            open_data(str(csv()), {"delimiter": said}, Columns("y"), 0)
    with pytest.raises(BadInput, match="own data have no option 'delimiter'"):
        open_data(str(folder), {"delimiter": ";"}, Columns(), 0)
