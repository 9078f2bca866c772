"""Hugging Face: columns of a dataset become examples; nothing here asks the network."""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core.errors import InputError, MissingExtraError
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, shuffled_order
from spurless.data.loaders.csv import from_csv
from spurless.data.loaders.huggingface import from_huggingface
from spurless.data.split import Split, Splits

datasets = pytest.importorskip("datasets", reason="the extra 'hf' is not installed")


def made(start: int, stop: int, label: Any = None) -> Any:
    """Make a dataset whose pictures tell their number."""
    numbers = range(start, stop)
    columns = {
        "image": [Image.fromarray(np.full((4, 6, 3), i, np.uint8)) for i in numbers],
        "label": [i % 2 for i in numbers],
        "place": ["land" if i % 4 < 2 else "sea" for i in numbers],
        "age": [i % 3 for i in numbers],
    }
    features = datasets.Features(
        image=datasets.Image(),
        label=label or datasets.ClassLabel(names=["no", "yes"]),
        place=datasets.Value("string"),
        age=datasets.ClassLabel(names=["young", "old", "older"]),
    )
    return datasets.Dataset.from_dict(columns, features=features)


def every(splits: Splits) -> list[Split]:
    return [splits.train, splits.val, splits.test]


def numbers(split: Split) -> list[int]:
    assert isinstance(split.x, Tensor)
    return [int(v) for v in split.x.flatten(1)[:, 0]]


def test_a_dataset_keeps_pixels_labels_and_names() -> None:
    data = from_huggingface(made(0, 40), attribute="place", seed=2)
    assert data.name == "huggingface dataset"
    assert (data.options["attribute"], data.options["seed"]) == (["place"], 2)
    assert data.groups.names == ("no, land", "no, sea", "yes, land", "yes, sea")
    assert data.train.x.shape[1:] == (3, 4, 6)  # type: ignore[union-attr]
    assert [split.counts.tolist() for split in every(data)] == [[7] * 4, [2] * 4, [1] * 4]
    assert sorted(i for split in every(data) for i in numbers(split)) == list(range(40))
    for split in every(data):
        assert split.y.tolist() == [i % 2 for i in numbers(split)]
        assert split.a.tolist() == [i % 4 // 2 for i in numbers(split)]


def test_several_attributes_are_crossed_by_their_names() -> None:
    data = from_huggingface(made(0, 40), attribute=["place", "age"], size=3)
    assert data.groups.attributes[1] == "land & old"
    assert data.train.a.tolist() == [[i % 4 // 2, i % 3] for i in numbers(data.train)]
    assert data.train.x.shape[1:] == (3, 3, 3)  # type: ignore[union-attr]


def test_labels_without_names_are_called_by_their_values() -> None:
    data = from_huggingface(made(0, 12, datasets.Value("int64")))
    assert data.groups.labels == ("0", "1")
    assert data.train.y.tolist() == [i % 2 for i in numbers(data.train)]


def test_splits_are_taken_as_they_are_and_the_missing_one_is_cut() -> None:
    parts = {"test": made(32, 40), "train": made(0, 20), "validation": made(20, 32)}
    data = from_huggingface(datasets.DatasetDict(parts))
    assert [numbers(split) for split in every(data)] == [list(range(20)), list(range(20, 32)), list(range(32, 40))]
    cut = from_huggingface({"train": parts["train"], "test": parts["test"]})
    assert numbers(cut.test) == list(range(32, 40))
    assert sorted(numbers(cut.train) + numbers(cut.val)) == list(range(20))


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_and_resident_give_the_same_batches(workers: int) -> None:
    dataset = made(0, 30)
    held, streamed = (from_huggingface(dataset, stream=stream) for stream in (False, True))
    assert (held.train.streamed, streamed.train.streamed) == (False, True)
    loaders = [
        Loader(d.train, shuffled_order(len(d.train), Seeds(0)), batch_size=8, workers=workers) for d in (held, streamed)
    ]
    for one, other in zip(loaders[0].batches(), loaders[1].batches(), strict=True):
        assert isinstance(one.x, Tensor)
        assert isinstance(other.x, Tensor)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


def test_the_fingerprint_of_a_stream_follows_the_dataset() -> None:
    prints = [from_huggingface(made(0, n), stream=True).train.fingerprint() for n in (30, 30, 31)]
    assert prints[0] == prints[1] != prints[2]


def test_the_order_of_the_splits_does_not_matter() -> None:
    train, test = made(0, 20), made(20, 30)
    one, other = ({"train": train, "test": test}, {"test": test, "train": train})
    assert from_huggingface(one, stream=True).fingerprint() == from_huggingface(other, stream=True).fingerprint()


def test_a_folder_saved_by_datasets_is_loaded_from_disk(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": made(0, 20), "test": made(20, 30)}).save_to_disk(str(tmp_path / "both"))
    data = from_huggingface(str(tmp_path / "both"))
    assert data.name == f"huggingface {tmp_path / 'both'}"
    assert numbers(data.test) == list(range(20, 30))
    made(0, 20).save_to_disk(str(tmp_path / "one"))
    assert len(from_huggingface(tmp_path / "one").train) == 14


@pytest.mark.parametrize("name", ["../outside/data.arrow", "/OUT/data.arrow", "link.arrow", "link/data.arrow"])
def test_a_folder_that_names_data_outside_of_it_is_refused(name: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "set"
    made(0, 20).save_to_disk(str(outside))
    made(0, 20).save_to_disk(str(folder))
    next(outside.glob("*.arrow")).rename(outside / "data.arrow")
    (folder / "link").symlink_to(outside)
    (folder / "link.arrow").symlink_to(outside / "data.arrow")
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"] = [{"filename": name.replace("OUT", str(outside).lstrip("/"))}]
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="outside of its folder") as caught:
        from_huggingface(folder)
    assert caught.value.where == folder / "state.json"
    (folder / "dataset_dict.json").write_text('{"splits": ["../outside"]}')
    with pytest.raises(InputError, match="outside of its folder") as caught:
        from_huggingface(folder)
    assert caught.value.where == folder / "dataset_dict.json"


@pytest.mark.parametrize("stream", [True, False])
def test_images_that_are_urls_are_not_requested(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*address: object, **_: object) -> None:
        raise AssertionError(address)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(socket.socket, "connect", fail)
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    rows = {"image": ["http://127.0.0.1:9/x.png"] * 20, "label": [0, 1] * 10}
    with pytest.raises(InputError, match="images are URLs"):
        from_huggingface(datasets.Dataset.from_dict(rows, features=features), stream=stream, size=8)


def test_a_folder_of_parquet_files_is_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    made(0, 20).to_parquet(str(tmp_path / "data" / "train.parquet"))
    made(20, 30).to_parquet(str(tmp_path / "data" / "test.parquet"))
    data = from_huggingface(str(tmp_path / "data"))
    assert data.groups.labels == ("no", "yes")
    assert numbers(data.test) == list(range(20, 30))


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = made(0, 12)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        MissingExtraError, match=r"needs the package 'datasets'. Install it with: pip install 'spurless\[hf\]'"
    ):
        from_huggingface(dataset)


def test_a_stream_of_the_hub_is_refused() -> None:
    with pytest.raises(InputError, match=r"IterableDataset cannot be indexed .*Load it without streaming=True"):
        from_huggingface(made(0, 12).to_iterable_dataset())


def test_a_folder_without_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: the dataset cannot be loaded"):
        from_huggingface(tmp_path / "empty")


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (
            lambda: made(0, 9),
            {"label": "lable"},
            r"no column is called 'lable'. Did you mean 'label'\? Columns: image,",
        ),
        (lambda: made(0, 9), {"image": "img"}, r"no column is called 'img'"),
        (lambda: made(0, 9), {"attribute": "x"}, r"no column is called 'x'. Columns: image, label, place, age\."),
        (lambda: {"train": made(0, 9), "extra": made(0, 9)}, {}, r"the split 'extra' is unknown .*Pass a dict"),
        (lambda: {"train": made(0, 9), "val": made(0, 9), "dev": made(0, 9)}, {}, r"the split 'dev' is a duplicate"),
        (lambda: {"test": made(0, 9)}, {}, r"the dataset has no train split \(got test\)"),
        (
            lambda: {"train": made(0, 9), "test": made(0, 9, datasets.ClassLabel(names=["yes", "no"]))},
            {},
            r"the splits differ in the names of column 'label'",
        ),
    ],
)
def test_a_bad_dataset_is_answered_with_a_sentence(dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_huggingface(dataset(), **options)


def test_an_example_without_a_label_is_named() -> None:
    dataset = made(0, 3, datasets.Value("string")).map(lambda row: {**row, "label": None if row["age"] == 2 else "a"})
    with pytest.raises(InputError, match=r"column 'label': example 2 has no label"):
        from_huggingface(dataset)


WORDS = ["good", "bad"]


def told(start: int, stop: int) -> Any:
    """Make a dataset of texts that tell their label, and of answers to them."""
    numbers = range(start, stop)
    columns = {
        "review": [f"{WORDS[i % 2]} {'x' * (i // 2 + 1)}" for i in numbers],
        "answer": [f"so {WORDS[i % 2]}" for i in numbers],
        "label": [i % 2 for i in numbers],
        "place": ["land" if i % 4 < 2 else "sea" for i in numbers],
    }
    strings = {name: datasets.Value("string") for name in ("review", "answer", "place")}
    return datasets.Dataset.from_dict(
        columns, features=datasets.Features(label=datasets.ClassLabel(names=["no", "yes"]), **strings)
    )


def test_texts_are_tokenised_and_keep_their_label_attribute_and_split(
    tmp_path: Path, speller: str, spoken: Callable[[Tensor], str]
) -> None:
    datasets.DatasetDict({"train": told(0, 20), "validation": told(20, 28), "test": told(28, 40)}).save_to_disk(
        str(tmp_path / "reviews")
    )
    data = from_huggingface(tmp_path / "reviews", text="review", attribute="place", tokenizer=speller, max_length=64)
    assert [len(split) for split in every(data)] == [20, 8, 12]
    assert data.groups.names == ("no, land", "no, sea", "yes, land", "yes, sea")
    assert data.options["text"] == ["review"]
    assert (data.options["tokenizer"], data.options["max_length"]) == (speller, 64)
    whole = told(28, 40)
    assert isinstance(data.test.x, dict)
    assert [spoken(ids).replace(" ", "") for ids in data.test.x["input_ids"]] == [
        text.replace(" ", "") for text in whole["review"]
    ]
    assert data.test.y.tolist() == whole["label"]
    assert data.test.a.tolist() == [["land", "sea"].index(place) for place in whole["place"]]
    assert data.test.names is not None
    assert data.test.names.text(0) == whole["review"][0]


def test_texts_are_those_of_a_csv_with_the_same_words(tmp_path: Path, speller: str) -> None:
    told(0, 40).to_csv(str(tmp_path / "t.csv"))
    ours = from_huggingface(told(0, 40), text=("review", "answer"), tokenizer=speller, max_length=32, seed=3)
    csv = from_csv(
        tmp_path / "t.csv", label="label", text=("review", "answer"), tokenizer=speller, max_length=32, seed=3
    )
    for one, other in zip(every(ours), every(csv), strict=True):
        assert isinstance(one.x, dict)
        assert isinstance(other.x, dict)
        assert torch.equal(one.x["input_ids"], other.x["input_ids"])
        assert torch.equal(one.y, other.y)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (told, {"image": "review"}, r"'review' contains texts instead of images. Set .* text= \(--text\)"),
        (told, {}, r"no column is called 'image'. Set it with .*, or text= .* Columns: "),
        (told, {"text": "label"}, r"'label' contains no texts"),
        (made, {"text": "image"}, r"'image' contains no texts. Set .* image= \(--file\)"),
        (told, {"text": "reviews"}, r"no column is called 'reviews'. Did you mean 'review'\?"),
        (told, {"text": "review", "image": "answer"}, r"text and image are both given"),
        (told, {"text": "review", "size": 8}, r"text and size are both given, but size is for images"),
        (told, {"text": ()}, r"text must be one column or two \(got no column\)"),
    ],
)
def test_what_is_no_text_or_no_image_is_said(
    dataset: Callable[[int, int], Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        from_huggingface(dataset(0, 12), **options)


def test_an_example_without_a_text_is_named(speller: str) -> None:
    dataset = told(0, 12).map(lambda row: {**row, "review": None if row["review"] == "bad xx" else row["review"]})
    with pytest.raises(InputError, match=r"the text of example 3 is not a string"):
        from_huggingface(dataset, text="review", tokenizer=speller)
