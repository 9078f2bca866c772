"""Load Hugging Face datasets of images or texts from the hub, from disk or from memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, MissingExtraError, did_you_mean
from spurless.core.hf_files import is_inside
from spurless.core.modules import Input
from spurless.core.seeds import Seeds
from spurless.data.loaders.images import read_images
from spurless.data.loaders.text import choose_tokenizer, tokenise
from spurless.data.loaders.torch_dataset import DatasetInputs
from spurless.data.split import ExampleIds, Source, Split, Splits, Transform
from spurless.data.splitting import SPLIT_NAMES, encode_values, make_splits, name_groups, stack_codes

IMAGE = "image"  # default column of the image
INPUT_OPTIONS = "image= (--file), or text= (--text) for texts"
TEXT_DTYPES = ("string", "large_string", "string_view")  # data types of a column of texts


def from_huggingface(  # noqa: PLR0913 - one parameter per option
    name_or_dataset: Any,
    *,
    image: str | None = None,
    text: str | Sequence[str] | None = None,
    label: str = "label",
    attribute: str | Sequence[str] | None = None,
    config: str | None = None,
    revision: str | None = None,
    size: int | None = None,
    tokenizer: str = "auto",
    max_length: int = 128,
    seed: int = 0,
    stream: bool | None = None,
    held_out: bool = False,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load a dataset by its name on the hub, from a folder, or from memory (``Dataset`` or ``DatasetDict``).

    The inputs are texts if ``text`` is given, images otherwise. Classes and attributes have the names of their
    ``ClassLabel``, or are named by their values in natural order. A missing val or test split is taken from train at
    random, stratified, 15 % for each.

    Args:
        name_or_dataset: a name such as ``owner/name`` (needs the network), a folder, or a dataset.
        image: column of the image; by default ``image``.
        text: column of the text; for pairs of texts, both columns.
        label: column of the class.
        attribute: column of the attribute, or several to cross.
        config: configuration, if the dataset has several.
        revision: commit on the hub, for reproducibility.
        size: resize the short side to this and crop the center; needed if images differ in size.
        tokenizer: tokenizer of texts; see :func:`spurless.data.loaders.text.choose_tokenizer`.
        max_length: maximum number of tokens of a text, or of a pair.
        seed: seed of the split.
        stream: decode images on demand (True), now (False), or now if they fit in 1 GiB (None).
        held_out: the examples were not trained on: without a train split, none is made, and without any splits all
            examples are test.
        transform: function from a batch of uint8 images, or of tokens, to model input.
        augment: transform that is applied first, in training only.

    Raises:
        MissingExtraError: the package ``datasets``, or transformers for texts, is not installed.
        InputError: the dataset, a column or an example is invalid.
    """
    check_arguments(from_huggingface, locals())
    texts = [text] if isinstance(text, str) else list(text or ())
    if text is not None:
        _check_texts(texts, image=image, size=size, stream=stream)
    given = _load(name_or_dataset, config, revision)
    parts = _number_splits(given, held_out)
    attributes = [attribute] if isinstance(attribute, str) else list(attribute or ())
    _check_columns(parts, image, texts, [label, *attributes])
    labels, y = _encode(parts, label)
    if bool((y < 0).any()):
        raise InputError(f"example {int((y < 0).nonzero()[0])} has no label", where=f"column {label!r}")
    encoded = {column: _encode(parts, column) for column in attributes}
    a = stack_codes((codes for _, codes in encoded.values()), y)
    groups = name_groups(labels, {column: values for column, (values, _) in encoded.items()})
    if texts:
        tokenizer = choose_tokenizer(tokenizer)
        kind: dict[str, Any] = {"text": texts, "tokenizer": tokenizer, "max_length": max_length}
        x: Input | Source
        names: ExampleIds | None
        x, names = _read_texts(parts, texts, tokenizer, max_length)
    else:
        kind = {"image": image or IMAGE, "size": size, "stream": stream}
        x, names = _read_images(parts, image or IMAGE, size, stream), None
    return make_splits(
        Split(x, y, a, groups, transform, augment, names=names),
        torch.cat([torch.full((len(part),), k) for k, part in parts.items()]) if isinstance(given, Mapping) else None,
        seeds=Seeds(seed),
        name=f"huggingface {name_or_dataset if isinstance(name_or_dataset, str | Path) else 'dataset'}",
        options={"label": label, "attribute": attributes, "config": config, "revision": revision, "seed": seed, **kind},
        held_out=held_out,
    )


def _read_images(parts: Mapping[int, Any], column: str, size: int | None, stream: bool | None) -> Input | Source:
    _check_no_urls(parts, column)
    content = ",".join(str(getattr(part, "_fingerprint", "")) for part in parts.values())
    return read_images(DatasetInputs.of(ConcatDataset(list(parts.values())), size, column, content), stream, threads=1)


def _read_texts(
    parts: Mapping[int, Any], columns: Sequence[str], tokenizer: str, max_length: int
) -> tuple[Input, ExampleIds]:
    texts = [_values(parts, column) for column in columns]
    x = tokenise(*texts, tokenizer=tokenizer, max_length=max_length)
    return x, ExampleIds(torch.arange(len(texts[0])), texts=[" / ".join(pair) for pair in zip(*texts, strict=True)])


def _load(name: Any, config: str | None, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "hf", "Loading data from Hugging Face") from None

    if not isinstance(name, str | Path):
        return name
    folder = Path(name)
    _check_data_files(folder)
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
            return datasets.load_from_disk(str(name))
        return datasets.load_dataset(str(name), config, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"the dataset cannot be loaded: {error}", where=name) from error


def _check_data_files(folder: Path) -> None:
    """Raise if the JSON files of a folder name data outside of it."""
    for index in (folder / "dataset_dict.json", folder / "state.json"):
        if not index.is_file():
            continue
        try:
            content = json.loads(index.read_text(encoding="utf-8"))
            parts = [str(part) for part in content.get("splits", ())]
            names = [str(file["filename"]) for file in content.get("_data_files", ())]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise InputError("the file cannot be read", where=index, hint="Save the dataset again.") from None
        for name in (*parts, *names):
            if not is_inside(folder, name):
                hint = "Get the dataset from a source you trust."
                raise InputError("the file names data outside of its folder", where=index, got=name, hint=hint)
        for part in parts:
            _check_data_files(folder / part)


def _check_no_urls(parts: Mapping[int, Any], column: str) -> None:
    """Raise if images are stored as URLs, which would be requested."""
    import pyarrow.compute as pc
    from pyarrow.types import is_struct

    for part in parts.values():
        stored = part.data.column(column)
        if is_struct(stored.type) and stored.type.get_field_index("path") >= 0:
            paths = pc.struct_field(stored, "path")
            if pc.any(pc.match_substring(paths, "://")).as_py():
                hint = "Download the images, and store them in the dataset."
                raise InputError("the images are URLs, which are not requested", where=f"column {column!r}", hint=hint)


def _number_splits(dataset: Any, held_out: bool) -> dict[int, Any]:
    """Return the splits of a dataset by number; a dataset without splits is train."""
    import datasets

    splits = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    parts: dict[int, Any] = {}
    for name, part in splits.items():
        number = SPLIT_NAMES.get(str(name).lower())
        if number is None or number in parts:
            what = f"the split {str(name)!r} is {'unknown' if number is None else 'a duplicate'}"
            got = ", ".join(map(str, splits))
            raise InputError(what, expected="train, validation, test", got=got, hint="Pass a dict with these names.")
        if not isinstance(part, datasets.Dataset):
            what = f"{type(part).__name__} cannot be indexed"
            raise InputError(what, expected="a Dataset or a DatasetDict", hint="Load it without streaming=True.")
        parts[number] = part
    if 0 not in parts and not (held_out and parts):
        raise InputError("the dataset has no train split", got=", ".join(map(str, splits)) or "no split at all")
    return dict(sorted(parts.items()))


def _values(parts: Mapping[int, Any], column: str) -> list[Any]:
    return [value for part in parts.values() for value in part.select_columns([column])[:][column]]


def _encode(parts: Mapping[int, Any], column: str) -> tuple[tuple[str, ...], Tensor]:
    """Encode the values of a column over all splits as integers; -1 if missing."""
    values = _values(parts, column)
    class_names = {tuple(getattr(part.features[column], "names", None) or ()) for part in parts.values()}
    if len(class_names) > 1:
        raise InputError(f"the splits differ in the names of column {column!r}", got=sorted(class_names))
    (names,) = class_names
    if not names:
        return encode_values(values)
    return names, torch.tensor([-1 if value is None else value for value in values], dtype=torch.long)


def _check_texts(texts: Sequence[str], **others: object) -> None:
    if not 1 <= len(texts) <= 2:
        raise InputError("text must be one column or two", got=", ".join(texts) or "no column")
    for name, value in others.items():
        if value is not None:
            raise InputError(f"text and {name} are both given, but {name} is for images", hint="Leave one of them out.")


def _check_columns(parts: Mapping[int, Any], image: str | None, texts: Sequence[str], others: Sequence[str]) -> None:
    """Raise if a column is missing in a split, or if the input is not an image or a text as requested."""
    inputs = texts or (image or IMAGE,)
    for part in parts.values():
        known = list(part.column_names)
        for column in (*inputs, *others):
            if column not in known:
                guessed = column in inputs and not texts and image is None
                hint = f"Set it with {INPUT_OPTIONS}." if guessed else did_you_mean(column, known)
                raise InputError(f"no column is called {column!r}", hint=f"{hint} Columns: {', '.join(known)}.".strip())
        for column in inputs:
            if (str(getattr(part.features[column], "dtype", "")) in TEXT_DTYPES) != bool(texts):
                content = "no texts" if texts else "texts instead of images"
                what = f"the column {column!r} contains {content}"
                raise InputError(what, hint=f"Set the input with {INPUT_OPTIONS}.")
