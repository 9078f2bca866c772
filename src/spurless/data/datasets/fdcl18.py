"""FDCL18: abusive, spam, normal or hateful tweets; the dialect of a tweet correlates with its rating.

It reads two layouts. That of GC-DRO has dialects and a split: ``train.tsv``, ``valid.tsv`` and ``test.tsv``,
tab-separated with a header; the first column is the label, the second the dialect (other, aav, hispanic, white), the
last the tweet. The published ``hatespeech_text_label_vote_RESTRICTED_100K.csv`` has tweet, label and votes,
tab-separated; column names in its first rows are skipped. It has no dialects: add ``dialect.csv`` to the same folder,
with the columns ``row`` (the number of the tweet, from 0) and ``dialect``, as predicted by the model of Blodgett et
al.; otherwise the attributes are unknown. The split is sampled by seed then, 70/15/15.

``partition="imperfect"`` (GC-DRO): methods are given the four dialects without the label.

Deviation:
    * GC-DRO merges groups with 100 test tweets or fewer for evaluation; here they are separate.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.data.checks import check_choice
from spurless.data.dataset import Card, Dataset, Layout, find_folder, require_file
from spurless.data.datasets._common import TextConfig, split_examples, tokenise_with
from spurless.data.loaders.csv import encode_column, open_csv, read_columns
from spurless.data.split import Split, Splits

GROUPS = Groups(
    labels=("abusive", "spam", "normal", "hateful"),
    attributes=("other", "African-American-aligned", "Hispanic-aligned", "White-aligned"),
)
LABELS = {name: number for number, name in enumerate(GROUPS.labels)}
DIALECTS = {"other": 0, "aav": 1, "hispanic": 2, "white": 3}
N_TWEETS = 99996
PUBLISHED_FILE = "hatespeech_text_label_vote_RESTRICTED_100K.csv"
SPLIT_FILES = ("train.tsv", "valid.tsv", "test.tsv")
CARD = Card(
    name="fdcl18",
    summary="Abusive, spam, normal or hateful tweets; African American English is rated abusive more often.",
    input="a tweet, at most max_length tokens: input_ids, attention_mask, token_type_ids, int32",
    label="abusive, spam, normal or hateful",
    attribute="the dialect, as predicted by a model: other, African-American-, Hispanic- or White-aligned",
    splits="99,996 tweets; those of GC-DRO if its files are present, else 70/15/15 % by seed, stratified",
    source="tweets of 2017, rated by crowdworkers; dialects of the model of Blodgett et al. 2016",
    licence="on request, for research only",
    citation="Founta et al., Large Scale Crowdsourcing and Characterization of Twitter Abusive Behavior, ICWSM 2018, "
    "arXiv:1802.00393; partition: Zhou et al., Examining and Combating Spurious Features, ICML 2021",
)
LAYOUT = Layout(
    files=((PUBLISHED_FILE, SPLIT_FILES[0]), ("dialect.csv", SPLIT_FILES[1]), (PUBLISHED_FILE, SPLIT_FILES[2])),
    folders=("fdcl18", "fdcl18/raw", "founta", "founta/raw"),
    markers=("train.tsv", PUBLISHED_FILE),
    obtain="Request the file on its page (zenodo.org/record/3706866).",
)


@dataclass(frozen=True)
class FDCL18Config(TextConfig):
    """Options of ``fdcl18``."""

    partition: str = "clean"  # groups given to methods: clean (label x dialect) or imperfect (dialect only)
    tokenizer: str = "auto"  # minilm if installed, else words; GC-DRO: roberta-base


def fdcl18(config: FDCL18Config = FDCL18Config()) -> Splits:
    """Read the tweets."""
    check_choice(CARD, config, "partition", ("clean", "imperfect"))
    folder = find_folder(CARD.name, LAYOUT, config.root)
    texts, y, a, split = (
        _read_gc_dro_files(folder) if (folder / SPLIT_FILES[0]).is_file() else _read_published_file(folder)
    )
    imperfect = config.partition == "imperfect"
    if imperfect and bool((a < 0).any()):
        raise InputError(
            "the imperfect partition needs the dialect of every tweet", where=folder, hint="Write them to dialect.csv."
        )
    notes = _collect_notes(y, a, split)
    x, config = tokenise_with(config, texts)
    whole = Split(x, y, a, GROUPS)
    if imperfect:
        whole = replace(whole, domain=a, domains=GROUPS.attributes)
    splits = split_examples(CARD, config, whole, split)
    return replace(splits, test=replace(splits.test, domain=None, domains=()), notes=notes)


def _collect_notes(y: Tensor, a: Tensor, split: Tensor | None) -> tuple[str, ...]:
    notes: list[str] = []
    if split is None and len(y) != N_TWEETS:
        notes.append(f"fdcl18 is not complete as published: there are {len(y):,} tweets instead of {N_TWEETS:,}.")
        warnings.warn(notes[0], IncompleteDataWarning, stacklevel=3)
    if bool((a < 0).any()):
        notes.append(f"The dialect of {int((a < 0).sum()):,} of {len(a):,} tweets is unknown, so they are in no group.")
        remedy = f"Write the dialects to dialect.csv (row,dialect) in the folder of {PUBLISHED_FILE}."
        warnings.warn(f"{notes[-1]} {remedy}", SpurlessWarning, stacklevel=3)
    return tuple(notes)


def _read_gc_dro_files(folder: Path) -> tuple[list[str], Tensor, Tensor, Tensor]:
    """Read the three files of GC-DRO; not as CSV, since quotes are part of the tweets."""
    texts: list[str] = []
    rows: list[tuple[int, int, int]] = []
    for number, name in enumerate(SPLIT_FILES):
        path = require_file(folder / name, CARD.name)
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise InputError(f"the file is not UTF-8: {error}", where=path) from None
        for line, text in enumerate(lines[1:], start=2):
            cells = text.strip().split("\t")
            if len(cells) >= 3:
                label, dialect = (_parse_code(cells[k], known, path, line) for k, known in ((0, LABELS), (1, DIALECTS)))
                rows.append((label, dialect, number))
                texts.append(cells[-1])
            elif text.strip():
                raise InputError("the row lacks label, dialect or tweet", where=f"{path}, row {line}", got=len(cells))
    y, a, split = (torch.tensor(rows).reshape(-1, 3)[:, k].contiguous() for k in range(3))
    return texts, y, a, split


def _read_published_file(folder: Path) -> tuple[list[str], Tensor, Tensor, None]:
    path = folder / PUBLISHED_FILE
    texts: list[str] = []
    labels: list[int] = []
    with open_csv(path, "\t") as lines:
        for number, cells in enumerate(lines, start=1):
            is_labelled = len(cells) > 1 and cells[1].strip() in LABELS
            if not is_labelled and not texts and number <= 3:
                continue  # some copies have column names
            if cells:
                labels.append(_parse_code(cells[1] if len(cells) > 1 else "", LABELS, path, number))
                texts.append(cells[0].strip())
    if not texts:
        raise InputError("there are no tweets in the file", where=path)
    y = torch.tensor(labels)
    return texts, y, _read_dialects(folder / "dialect.csv", len(texts)), None


def _read_dialects(path: Path, n: int) -> Tensor:
    a = torch.full((n,), -1)
    if not path.is_file():
        return a
    cells = read_columns(path, ("row", "dialect"))
    rows = encode_column(cells["row"], {str(i): i for i in range(n)}, path, "row") if n else a
    a[rows] = encode_column(cells["dialect"], {**DIALECTS, "": -1}, path, "dialect")
    return a


def _parse_code(cell: str, known: dict[str, int], path: Path, row: int) -> int:
    word = cell.strip()
    if word not in known:
        raise InputError(f"{word!r} is unknown", where=f"{path}, row {row}", expected=", ".join(known))
    return known[word]


DATASET = Dataset(card=CARD, config=FDCL18Config, make=fdcl18, layout=LAYOUT)
