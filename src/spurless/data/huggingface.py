"""Hugging Face: a dataset of images or of texts from the hub, from disk or from memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset

from spurless.core.errors import BadInput, MissingExtra, did_you_mean
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Input, Source, Splits, Transform
from spurless.data.images import read
from spurless.data.names import Names
from spurless.data.splitting import SPLIT_NAMES, assemble, name_groups, name_values
from spurless.data.text import choose_tokenizer, tokenise
from spurless.data.torch_dataset import Examples

IMAGE = "image"
"""The column of the image unless the user says otherwise."""
NAMING = "image= (--file), or text= (--text) where it is a text"
WORDS = ("string", "large_string", "string_view")
"""What a column of texts is made of."""


def from_huggingface(  # noqa: PLR0913 - a loader's options are its arguments
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
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load a dataset by its name on the hub, its folder, or itself (``Dataset`` or ``DatasetDict``).

    It is one of texts if ``text`` is given, and one of images otherwise. Classes and attributes are called as
    their ``ClassLabel`` says, or by their values in natural order. Where val or test is missing, it is cut from train
    at random, stratified, 15 % of it for each.

    Args:
        name_or_dataset: a name such as ``owner/name`` (this asks the network), a folder, or a dataset.
        image: the column of the image; ``image`` unless told.
        text: the column of the text; of pairs of texts, both columns.
        label: the column of the class.
        attribute: the column of the attribute, or several to cross.
        config: which configuration, where a name has several.
        revision: which commit of the hub, so that tomorrow's data is today's.
        size: resize the short side to this and cut the centre out; needed where images differ in size.
        tokenizer: of texts; see :func:`spurless.data.text.choose_tokenizer`.
        max_length: tokens that are kept of a text, or of a pair.
        seed: of the split.
        stream: decode images on demand (True), now (False), or now if they fit in 1 GiB (None).
        transform: from a batch of uint8 images, or of tokens, to what the model takes.
        augment: before ``transform``, in training only.

    Raises:
        MissingExtra: the package ``datasets`` is not installed, or of texts, transformers.
        BadInput: the dataset, a column or an example cannot be used.
    """
    texts = [text] if isinstance(text, str) else list(text or ())
    if text is not None:
        _check_texts(texts, image=image, size=size, stream=stream)
    parts = _parts(_loaded(name_or_dataset, config, revision))
    attributes = [attribute] if isinstance(attribute, str) else list(attribute or ())
    _check_columns(parts, image, texts, [label, *attributes])
    labels, y = _codes(parts, label)
    if bool((y < 0).any()):
        raise BadInput(f"example {int((y < 0).nonzero()[0])} has no label", where=f"column {label!r}")
    named = {column: _codes(parts, column) for column in attributes}
    codes = [a for _, a in named.values()] or [torch.full_like(y, -1)]
    if texts:
        tokenizer = choose_tokenizer(tokenizer)
        kind: dict[str, Any] = {"text": texts, "tokenizer": tokenizer, "max_length": max_length}
        x: Input | Source
        names: Names | None
        x, names = _read_texts(parts, texts, tokenizer, max_length)
    else:
        kind = {"image": image or IMAGE, "size": size, "stream": stream}
        x, names = _read_images(parts, image or IMAGE, size, stream), None
    return assemble(
        Grouped(
            x,
            y,
            codes[0] if len(codes) == 1 else torch.stack(codes, dim=1),
            name_groups(labels, {column: values for column, (values, _) in named.items()}),
            transform,
            augment,
            names=names,
        ),
        torch.cat([torch.full((len(part),), k) for k, part in parts.items()]),
        seeds=Seeds(seed),
        name=f"huggingface {name_or_dataset if isinstance(name_or_dataset, str | Path) else 'dataset'}",
        options={
            "label": label,
            "attribute": attributes,
            "config": config,
            "revision": revision,
            "seed": seed,
            **kind,
        },
    )


def _read_images(parts: Mapping[int, Any], column: str, size: int | None, stream: bool | None) -> Input | Source:
    content = ",".join(str(getattr(part, "_fingerprint", "")) for part in parts.values())
    return read(Examples.of(ConcatDataset(list(parts.values())), size, column, content), stream, threads=1)


def _read_texts(
    parts: Mapping[int, Any], columns: Sequence[str], tokenizer: str, max_length: int
) -> tuple[Input, Names]:
    found = [_values(parts, column) for column in columns]
    x = tokenise(*found, tokenizer=tokenizer, max_length=max_length)
    return x, Names(torch.arange(len(found[0])), texts=[" / ".join(both) for both in zip(*found, strict=True)])


def _loaded(name: Any, config: str | None, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "hf", "Loading data from Hugging Face") from None

    if not isinstance(name, str | Path):
        return name
    folder = Path(name)
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
            return datasets.load_from_disk(str(name))
        return datasets.load_dataset(str(name), config, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"the dataset cannot be loaded: {error}", where=name) from error


def _parts(dataset: Any) -> dict[int, Any]:
    """Number the splits of a dataset; one that has none is train."""
    import datasets

    splits = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    parts: dict[int, Any] = {}
    for name, part in splits.items():
        number = SPLIT_NAMES.get(str(name).lower())
        if number is None or number in parts:
            raise BadInput(
                f"the split {str(name)!r} is {'unknown' if number is None else 'there twice'}",
                expected="train, validation, test",
                got=", ".join(map(str, splits)),
                do="Pass a dict of the splits to use, by these names.",
            )
        if not isinstance(part, datasets.Dataset):
            raise BadInput(
                f"{type(part).__name__} cannot be indexed",
                expected="a Dataset or a DatasetDict",
                do="Load it without streaming=True.",
            )
        parts[number] = part
    if 0 not in parts:
        raise BadInput("there is no train split", got=", ".join(map(str, splits)) or "no split at all")
    return dict(sorted(parts.items()))


def _values(parts: Mapping[int, Any], column: str) -> list[Any]:
    return [value for part in parts.values() for value in part.select_columns([column])[:][column]]


def _codes(parts: Mapping[int, Any], column: str) -> tuple[tuple[str, ...], Tensor]:
    """Number the values of a column over all splits; -1 where there is none."""
    values = _values(parts, column)
    spoken = {tuple(getattr(part.features[column], "names", None) or ()) for part in parts.values()}
    if len(spoken) > 1:
        raise BadInput(f"the splits differ in the names of column {column!r}", got=sorted(spoken))
    (names,) = spoken
    if not names:
        return name_values(values)
    return names, torch.tensor([-1 if value is None else value for value in values], dtype=torch.long)


def _check_texts(texts: Sequence[str], **others: object) -> None:
    """Refuse what is said of images beside a text."""
    if not 1 <= len(texts) <= 2:
        raise BadInput("an example has one text or a pair of them", got=", ".join(texts) or "no column")
    for name, value in others.items():
        if value is not None:
            raise BadInput(f"text and {name} are both given, and {name} is for images", do="Leave one of them out.")


def _check_columns(parts: Mapping[int, Any], image: str | None, texts: Sequence[str], others: Sequence[str]) -> None:
    """See that every split has the columns, and that those of the input hold what they are named for."""
    inputs = texts or (image or IMAGE,)
    for part in parts.values():
        known = list(part.column_names)
        for column in (*inputs, *others):
            if column not in known:
                guessed = column in inputs and not texts and image is None
                do = f"Name it with {NAMING}." if guessed else did_you_mean(column, known)
                raise BadInput(f"no column is called {column!r}", do=f"{do} Columns: {', '.join(known)}.".strip())
        for column in inputs:
            if (str(getattr(part.features[column], "dtype", "")) in WORDS) != bool(texts):
                held = "no texts" if texts else "texts, and no images"
                raise BadInput(f"the column {column!r} holds {held}", do=f"Name that of the input with {NAMING}.")
