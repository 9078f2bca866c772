"""FDCL18: abusive, spam, normal or hateful tweets; the dialect of a tweet goes with what raters called it.

Two layouts. That of GC-DRO, which has dialects and a split: ``train.tsv``, ``valid.tsv`` and ``test.tsv`` with a
header and, between tabs, the label first, the dialect second (other, aav, hispanic, white) and the tweet last. Or
the published ``hatespeech_text_label_vote_RESTRICTED_100K.csv``: tweet, label and votes between tabs; it names no
columns, or does so in its first rows, which are skipped. Dialects are not part of it. They may lie beside it in
``dialect.csv`` with the columns ``row`` (the number of the tweet, from 0) and ``dialect``, written by whoever ran
the model of Blodgett et al.; without them the attributes are unknown. The split is then drawn by seed, 70/15/15.

``partition="imperfect"``, GC-DRO: methods are given the four dialects alone, whatever the label.

Deviation:
    * GC-DRO evaluates with the groups of 100 test tweets or fewer merged into one; here each stands for itself.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import BadInput, Incomplete, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.layout import Layout, find, need
from spurless.data.limits import check_choice, check_least
from spurless.data.rows import codes, columns, reading
from spurless.data.splitting import assemble
from spurless.data.text import choose_tokenizer, tokenise

GROUPS = Groups(
    labels=("abusive", "spam", "normal", "hateful"),
    attributes=("other", "African-American-aligned", "Hispanic-aligned", "White-aligned"),
)
LABELS = {name: number for number, name in enumerate(GROUPS.labels)}
DIALECTS = {"other": 0, "aav": 1, "hispanic": 2, "white": 3}
TWEETS = 99996
FILE = "hatespeech_text_label_vote_RESTRICTED_100K.csv"
PARTS = ("train.tsv", "valid.tsv", "test.tsv")
CARD = Card(
    name="fdcl18",
    summary="Abusive, spam, normal or hateful tweets; African American English is called abusive more often.",
    input="a tweet, at most max_length tokens: input_ids, attention_mask, token_type_ids, int32",
    label="abusive, spam, normal or hateful",
    attribute="the dialect, as a model tells it: other, African-American-, Hispanic- or White-aligned",
    splits="99,996 tweets; the three of GC-DRO where its files are there, else 70/15/15 % by seed, stratified",
    source="tweets of 2017, rated by crowdworkers; dialects of the model of Blodgett et al. 2016",
    licence="on request, for research only",
    citation=(
        "Founta et al., Large Scale Crowdsourcing and Characterization of Twitter Abusive Behavior, ICWSM 2018, "
        "arXiv:1802.00393; partition: Zhou et al., Examining and Combating Spurious Features, ICML 2021"
    ),
)
LAYOUT = Layout(
    files=(f"{FILE} and dialect.csv, or {', '.join(PARTS)}",),
    folders=("fdcl18", "fdcl18/raw", "founta", "founta/raw"),
    markers=("train.tsv", FILE),
    obtain="Ask for the file on its page (zenodo.org/record/3706866).",
)


@dataclass(frozen=True)
class FDCL18Config:
    """Where the files are, what methods are given, and how the text is tokenised."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    partition: str = "clean"  # what methods are given: clean (label x dialect) or imperfect (the dialects alone)
    tokenizer: str = "auto"  # minilm where installed, else words; GC-DRO: roberta-base
    max_length: int = 128  # tokens; a tweet has fewer
    seed: int = 0  # of the split, where none is published


DEFAULT = FDCL18Config()


def fdcl18(config: FDCL18Config = DEFAULT) -> Splits:
    """Read the tweets."""
    check_choice(CARD, config, "partition", ("clean", "imperfect"))
    check_least(CARD, config, max_length=4)
    folder = find(CARD.name, LAYOUT, config.root)
    texts, y, a, split = _parts(folder) if (folder / PARTS[0]).is_file() else _published(folder)
    imperfect = config.partition == "imperfect"
    if imperfect and bool((a < 0).any()):
        raise BadInput("the imperfect partition is made of dialects", where=folder, do="Write them to dialect.csv.")
    notes = _notes(y, a, split)
    config = replace(config, tokenizer=choose_tokenizer(config.tokenizer))
    x = tokenise(texts, tokenizer=config.tokenizer, max_length=config.max_length)
    whole = Grouped(x, y, a, GROUPS)
    if imperfect:
        whole = replace(whole, domain=a, domains=GROUPS.attributes)
    splits = assemble(whole, split, seeds=Seeds(config.seed), name=CARD.name, options=asdict(config))
    return replace(splits, test=replace(splits.test, domain=None, domains=()), notes=notes)


def _notes(y: Tensor, a: Tensor, split: Tensor | None) -> tuple[str, ...]:
    """Warn of what is not as published; return what a reader of numbers must know."""
    notes: list[str] = []
    if split is None and len(y) != TWEETS:
        notes.append(f"This is not the whole fdcl18 as published: there are {len(y):,} tweets and not {TWEETS:,}.")
        warnings.warn(notes[0], Incomplete, stacklevel=3)
    if bool((a < 0).any()):
        notes.append(f"The dialect of {int((a < 0).sum()):,} of {len(a):,} tweets is unknown, so they are in no group.")
        remedy = f"Write the dialects to dialect.csv (row,dialect), beside {FILE}."
        warnings.warn(f"{notes[-1]} {remedy}", SpurlessWarning, stacklevel=3)
    return tuple(notes)


def _parts(folder: Path) -> tuple[list[str], Tensor, Tensor, Tensor]:
    """Read the three files of GC-DRO; quotes belong to the tweets, so they are no CSV."""
    texts: list[str] = []
    rows: list[tuple[int, int, int]] = []
    for number, name in enumerate(PARTS):
        path = need(folder / name, CARD.name)
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise BadInput(f"the file is not UTF-8: {error}", where=path) from None
        for line, text in enumerate(lines[1:], start=2):
            cells = text.strip().split("\t")
            if len(cells) >= 3:
                label, dialect = (_code(cells[k], known, path, line) for k, known in ((0, LABELS), (1, DIALECTS)))
                rows.append((label, dialect, number))
                texts.append(cells[-1])
            elif text.strip():
                raise BadInput("the row lacks label, dialect or tweet", where=f"{path}, row {line}", got=len(cells))
    y, a, split = (torch.tensor(rows).reshape(-1, 3)[:, k].contiguous() for k in range(3))
    return texts, y, a, split


def _published(folder: Path) -> tuple[list[str], Tensor, Tensor, None]:
    """Read the published table, and the dialects beside it."""
    path = folder / FILE
    texts: list[str] = []
    labels: list[int] = []
    with reading(path, "\t") as lines:
        for number, cells in enumerate(lines, start=1):
            named = len(cells) > 1 and cells[1].strip() in LABELS
            if not named and not texts and number <= 3:
                continue  # the names of the columns, which some copies have
            if cells:
                labels.append(_code(cells[1] if len(cells) > 1 else "", LABELS, path, number))
                texts.append(cells[0].strip())
    if not texts:
        raise BadInput("there are no tweets in the file", where=path)
    y = torch.tensor(labels)
    return texts, y, _dialects(folder / "dialect.csv", len(texts)), None


def _dialects(path: Path, n: int) -> Tensor:
    a = torch.full((n,), -1)
    if not path.is_file():
        return a
    cells = columns(path, ("row", "dialect"))
    rows = codes(cells["row"], {str(i): i for i in range(n)}, path, "row") if n else a
    a[rows] = codes(cells["dialect"], {**DIALECTS, "": -1}, path, "dialect")
    return a


def _code(cell: str, known: dict[str, int], path: Path, row: int) -> int:
    word = cell.strip()
    if word not in known:
        raise BadInput(f"{word!r} is unknown", where=f"{path}, row {row}", expected=", ".join(known))
    return known[word]


DATASET = Dataset(card=CARD, config=FDCL18Config, make=fdcl18, layout=LAYOUT)
