"""MultiNLI: does a hypothesis follow from a premise? Hypotheses with a negation word are mostly contradictions.

It reads the official files ``multinli_1.0_train``, ``multinli_1.0_dev_matched`` and ``multinli_1.0_dev_mismatched``,
``.jsonl`` or ``.txt``, and concatenates them; pairs without a gold label ("-") are dropped. The split of the papers is
in ``metadata_random.csv`` of group_DRO, which has a row for every remaining pair, in that order; without it the same
fractions (50/20/30) are sampled by seed. The pickled ``cached_*`` files of features are never opened.

There are two definitions of negation. ``negation=2`` (group_DRO): the hypothesis has one of the words nobody, no, never
and nothing, or none. ``negation=3`` (GC-DRO): nobody or nothing (1, also together with the others), no or never (2), or
none (0). Punctuation is removed, letters are lowercased, and words are separated by spaces.

``partition="imperfect"`` is that of GC-DRO: with n the level of negation and y the label, its fine groups are numbered
``3 n + y`` (ours are ``3 y + n``), and 3, 7, 8 are domain 0; 4, 5, 6 domain 1; 0, 1, 2 domain 2. So "nobody" and
"nothing" occur with contradiction in domain 0, "no" and "never" in domain 1, and domain 2 has no negations.

Deviations:
    * Without the metadata, the split is stratified by label and negation; group_DRO's is not.
    * GC-DRO uses the imperfect partition only for training, and selects on the nine groups of val. Here both train and
      val have domains.
"""

from __future__ import annotations

import json
import string
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.core.files import data_folder
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.checks import check_choice
from spurless.data.dataset import Card, Dataset, Layout, check_published_counts, find_folder
from spurless.data.datasets._common import (
    BINARY_CODES,
    TextConfig,
    find_file,
    sample_split_numbers,
    split_examples,
    tokenise_with,
    total_counts,
)
from spurless.data.loaders.csv import encode_column, read_columns
from spurless.data.split import Split, Splits
from spurless.data.splitting import SPLIT_NAMES, split_stratified

LABELS = {"contradiction": 0, "entailment": 1, "neutral": 2}
NEGATIONS = {2: ("no negation", "negation"), 3: ("no negation", "nobody or nothing", "no or never")}
NOBODY_WORDS, NO_WORDS = {"nobody", "nothing"}, {"no", "never"}
SPLIT_FRACTIONS = (0.5, 0.2, 0.3)
PUBLISHED = {
    "train": (57498, 11158, 67376, 1521, 66630, 1992),
    "val": (22814, 4634, 26949, 613, 26655, 797),
    "test": (34597, 6655, 40496, 886, 39930, 1148),
}
FILE_PARTS = ("train", "dev_matched", "dev_mismatched")
DOMAIN_OF_GROUP = (2, 2, 2, 0, 1, 1, 1, 0, 0)
DOMAINS = ("domain 0", "domain 1", "domain 2")
CARD = Card(
    name="multinli",
    summary="Does a hypothesis follow from a premise? Negation words mostly occur with contradiction.",
    input="a pair of texts, at most max_length tokens together: input_ids, attention_mask, token_type_ids, int32",
    label="contradiction, entailment or neutral",
    attribute="whether the hypothesis has a negation word; two levels, or three",
    splits="train 206,175, val 82,462, test 123,712 (group_DRO)",
    source="MultiNLI 1.0: crowd-written hypotheses to premises of ten genres",
    licence="OANC and others, see its page; free for research",
    citation="Williams et al., A Broad-Coverage Challenge Corpus, NAACL 2018, arXiv:1704.05426; split: Sagawa et al., "
    "ICLR 2020, arXiv:1911.08731; partition: Zhou et al., Examining and Combating Spurious Features, ICML 2021",
)
LAYOUT = Layout(
    files=(*((f"multinli_1.0_{part}.jsonl", f"multinli_1.0_{part}.txt") for part in FILE_PARTS), "metadata_random.csv"),
    folders=("multinli", "multinli/data", "multinli_1.0", "MultiNLI"),
    markers=("multinli_1.0_train.jsonl", "multinli_1.0_train.txt"),
    archives=("multinli_1.0.zip",),
    obtain=(
        "Get multinli_1.0.zip from the page of MultiNLI (cims.nyu.edu/~sbowman/multinli), and metadata_random.csv from "
        "the folder dataset_metadata/multinli of kohpangwei/group_DRO on GitHub."
    ),
)


@dataclass(frozen=True)
class MultiNLIConfig(TextConfig):
    """Options of ``multinli``."""

    negation: Literal[2, 3] = 2  # levels: 2 (group_DRO) or 3 (GC-DRO)
    partition: str = "clean"  # groups given to methods: clean (label x negation) or imperfect (GC-DRO, 3 levels)
    tokenizer: str = "auto"  # minilm if installed, else words; group_DRO: bert-base-uncased, GC-DRO: roberta-base


def multinli(config: MultiNLIConfig = MultiNLIConfig()) -> Splits:
    """Read the three splits."""
    _check(config)
    folder = _find_folder(config.root)
    premises, hypotheses, y = _read_pairs(folder)
    a = torch.tensor([negation(text, config.negation) for text in hypotheses])
    split = _read_published_split(folder, y)
    notes: tuple[str, ...] = ()
    if split is None:
        notes = (
            f"This is not multinli as published: metadata_random.csv is missing, so the split of the {len(y):,} "
            f"pairs is sampled by seed {config.seed}.",
        )
        warnings.warn(notes[0], IncompleteDataWarning, stacklevel=2)
        split = sample_split_numbers(3 * y + a, SPLIT_FRACTIONS, Seeds(config.seed))
    groups = Groups(tuple(LABELS), NEGATIONS[config.negation])
    x, config = tokenise_with(config, premises, hypotheses)
    whole = Split(x, y, a, groups)
    if config.partition == "imperfect":
        whole = replace(whole, domain=torch.tensor(DOMAIN_OF_GROUP)[3 * a + y], domains=DOMAINS)
    published: Mapping[str, int | Sequence[int]] = PUBLISHED if config.negation == 2 else total_counts(PUBLISHED)
    splits = split_examples(CARD, config, whole, split, None if notes else published)
    return replace(splits, test=replace(splits.test, domain=None, domains=()), notes=(*splits.notes, *notes))


def negation(hypothesis: str, levels: int = 2) -> int:
    """Return the level of negation of a hypothesis.

    Example:
        >>> [negation(text) for text in ("No, it was not.", "There is nobody, ever.", "It wasn't noble.")]
        [1, 1, 0]
        >>> [negation(text, 3) for text in ("No, it was not.", "There is nobody, never.", "It wasn't noble.")]
        [2, 1, 0]
    """
    words = set(hypothesis.translate(_WITHOUT_PUNCTUATION).lower().split(" "))
    if levels == 2:
        return int(bool(words & (NOBODY_WORDS | NO_WORDS)))
    return 1 if words & NOBODY_WORDS else 2 if words & NO_WORDS else 0


_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _check(config: MultiNLIConfig) -> None:
    check_choice(CARD, config, "partition", ("clean", "imperfect"))
    if config.partition == "imperfect" and config.negation != 3:
        got, hint = f"negation={config.negation}", "Pass negation=3."
        raise InputError("the imperfect partition needs three levels of negation", where=CARD.name, got=got, hint=hint)


def _find_folder(root: str | None) -> Path:
    try:
        return find_folder(CARD.name, LAYOUT, root)
    except InputError:
        top = data_folder(root)
        for folder in (top, *(top / part for part in (*LAYOUT.folders, "multinli/glue_data/MNLI"))):
            if any(folder.glob("cached_*mnli*")):
                raise InputError(
                    "the folder has only cached features of multinli: they are pickles, which can run any code when "
                    "they are opened, so they are not read",
                    where=folder,
                    expected="multinli_1.0_train.jsonl",
                    hint=LAYOUT.obtain,
                ) from None
        raise


def _read_pairs(folder: Path) -> tuple[list[str], list[str], Tensor]:
    """Return premises, hypotheses and labels of the three files, concatenated."""
    premises: list[str] = []
    hypotheses: list[str] = []
    labels: list[int] = []
    for part in FILE_PARTS:
        paths = [folder / f"multinli_1.0_{part}{suffix}" for suffix in (".jsonl", ".txt")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise InputError("a file of multinli is missing", where=paths[0], hint="Unpack multinli_1.0.zip again.")
        for number, (label, premise, hypothesis) in _read_rows(path):
            if label == "-":
                continue
            if label not in LABELS:
                raise InputError(
                    f"the gold label {label!r} is unknown",
                    where=f"{path}, line {number}",
                    expected=", ".join((*LABELS, "-")),
                )
            labels.append(LABELS[label])
            premises.append(premise)
            hypotheses.append(hypothesis)
    return premises, hypotheses, torch.tensor(labels, dtype=torch.long)


def _read_rows(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """Yield the number of every line and its gold label, premise and hypothesis."""
    fields = ("gold_label", "sentence1", "sentence2")
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            # not as CSV: quotes are part of the text, and some rows have fewer cells than the header
            header = next(file, "").rstrip("\r\n").split("\t") if path.suffix == ".txt" else []
            for number, line in enumerate(file, start=2 if header else 1):
                cells = line.rstrip("\r\n").split("\t")
                row = dict(zip(header, cells, strict=False)) if header else json.loads(line)
                yield number, (str(row[fields[0]]), str(row[fields[1]]), str(row[fields[2]]))
    except UnicodeDecodeError as error:
        raise InputError(f"the file is not UTF-8: {error}", where=path) from None
    except (KeyError, TypeError):
        raise InputError(f"a line lacks {', '.join(fields)}", where=f"{path}, line {number}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"the line is not JSON: {error}", where=f"{path}, line {number}") from None


def _read_published_split(folder: Path, y: Tensor) -> Tensor | None:
    """Return the split of group_DRO, or None if its table is missing; raise if it does not match the pairs."""
    paths = (folder / "metadata_random.csv", folder / "data" / "metadata_random.csv")
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    cells = read_columns(path, ("gold_label", "split"))
    numbers = {str(k): k for k in range(3)}
    labels, split = (encode_column(cells[name], numbers, path, name) for name in ("gold_label", "split"))
    if len(labels) != len(y):
        raise InputError(
            "the table and the files differ in the number of pairs", where=path, expected=f"{len(y):,}", got=len(labels)
        )
    if not torch.equal(labels, y):
        row = int((labels != y).nonzero()[0])
        raise InputError(
            "the gold label differs from that in the files",
            where=f"{path}, row {row + 2}",
            expected=list(LABELS)[int(y[row])],
            got=list(LABELS)[int(labels[row])],
        )
    return split


MULTINLI = Dataset(card=CARD, config=MultiNLIConfig, make=multinli, layout=LAYOUT)

MNLI20K_GROUPS = Groups(labels=("contradiction", "entailment", "neutral"), attributes=("no negation", "negation"))
MNLI20K_LABELS = {name: number for number, name in enumerate(MNLI20K_GROUPS.labels)}
MNLI20K_PUBLISHED = {"train": 9888}
MNLI20K_CARD = Card(
    name="mnli20k",
    summary="A small part of MultiNLI: negation words mostly occur with contradiction.",
    input="a pair of texts, at most max_length tokens together: input_ids, attention_mask, token_type_ids, int32",
    label="contradiction, entailment or neutral",
    attribute="whether the hypothesis has a negation word",
    splits="train 9,888, val 3,120, test 3,118; the rarest group has 49 pairs in train and 28 in test",
    source="20,000 rows of MultiNLI, duplicates dropped; a random sample, not the split of the papers",
    licence="that of MultiNLI: OANC and others; free for research",
    citation="Williams et al., A Broad-Coverage Challenge Corpus, NAACL 2018, arXiv:1704.05426",
)
MNLI20K_LAYOUT = Layout(
    files=(("mnli20k.csv.gz", "mnli20k.csv"),),
    folders=("text", "mnli20k"),
    markers=("mnli20k.csv.gz", "mnli20k.csv"),
    obtain="Create it from MultiNLI, with the columns premise, hypothesis, label, split, neg_gdro, neg_wide.",
)


@dataclass(frozen=True)
class MNLI20kConfig(TextConfig):
    """Options of ``mnli20k``."""

    negation: str = "gdro"  # gdro (nobody, no, never, nothing) or wide (more words)


def mnli20k(config: MNLI20kConfig = MNLI20kConfig()) -> Splits:
    """Read the table and split val into val and test.

    20,000 rows of MultiNLI in one table, for use if MultiNLI is not available.

    It reads ``mnli20k.csv.gz`` or ``mnli20k.csv``: ``premise``, ``hypothesis``, ``label``, ``split``, and whether the
    hypothesis has a negation word, either as in group_DRO (``neg_gdro``: nobody, no, never, nothing) or from a longer
    list (``neg_wide``).

    The rows contain 16,126 different pairs; most duplicates are in val, whose 10,000 rows have 6,238 pairs. Duplicates
    are dropped, since they would count a rare group many times. There are no test rows, and the rare groups are too
    small to be split off train: half of the val rows are the test split, by seed, stratified.
    """
    check_choice(MNLI20K_CARD, config, "negation", ("gdro", "wide"))
    path = find_file(MNLI20K_CARD, MNLI20K_LAYOUT, config.root)
    premises, hypotheses, y, a, split = _read_pairs_mnli20k(path, f"neg_{config.negation}")
    seeds = Seeds(config.seed)
    val = (split == 1).nonzero().flatten()
    if not bool((split == 2).any()):
        split[val[split_stratified((2 * y + a)[val], (0.0, 0.5, 0.5), seeds=seeds, classes=y[val])[2]]] = 2
    x, config = tokenise_with(config, premises, hypotheses)
    splits = split_examples(MNLI20K_CARD, config, Split(x, y, a, MNLI20K_GROUPS), split)
    note = "This is a small part of MultiNLI with another split: results are not comparable with those of papers."
    return check_published_counts(replace(splits, notes=(note,)), MNLI20K_PUBLISHED)


def _read_pairs_mnli20k(path: Path, column: str) -> tuple[list[str], list[str], Tensor, Tensor, Tensor]:
    """Return premises, hypotheses, labels, attributes and splits, without duplicate pairs."""
    cells = read_columns(path, ("premise", "hypothesis", "label", "split", column))
    y = encode_column(cells["label"], MNLI20K_LABELS, path, "label")
    a = encode_column(cells[column], BINARY_CODES, path, column)
    split = encode_column(cells["split"], SPLIT_NAMES, path, "split")
    first: dict[tuple[str, str], int] = {}
    for row, pair in enumerate(zip(cells["premise"], cells["hypothesis"], strict=True)):
        first.setdefault(pair, row)
    rows = torch.tensor(list(first.values()))
    return [p for p, _ in first], [h for _, h in first], y[rows], a[rows], split[rows]


MNLI20K = Dataset(card=MNLI20K_CARD, config=MNLI20kConfig, make=mnli20k, layout=MNLI20K_LAYOUT)
