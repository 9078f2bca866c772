"""MNLI20k: 20,000 rows of MultiNLI in one table; what stands in for MultiNLI where it cannot be had.

Reads ``mnli20k.csv.gz`` or ``mnli20k.csv``: ``premise``, ``hypothesis``, ``label``, ``split``, and whether the
hypothesis has a negation word, counted as group_DRO does (``neg_gdro``: nobody, no, never, nothing) or with more
words (``neg_wide``).

Its rows are 16,126 different pairs: most repeats are among the 10,000 rows of val, which have 6,238. Each pair is
taken once, else a rare group would be counted many times over. There are no test rows, and the rare groups are too
small to be cut from train: half of the val rows are the test split, by seed, stratified.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.layout import Layout, compare, find
from spurless.data.limits import check_choice, check_least
from spurless.data.rows import codes, columns
from spurless.data.splitting import SPLIT_NAMES, assemble, stratified
from spurless.data.text import choose_tokenizer, tokenise

GROUPS = Groups(labels=("contradiction", "entailment", "neutral"), attributes=("no negation", "negation"))
LABELS = {name: number for number, name in enumerate(GROUPS.labels)}
PAIRS = {"train": 9888}
CARD = Card(
    name="mnli20k",
    summary="A small part of MultiNLI: negation words mostly come with contradiction.",
    input="a pair of texts, at most max_length tokens together: input_ids, attention_mask, token_type_ids, int32",
    label="contradiction, entailment or neutral",
    attribute="whether the hypothesis has a negation word",
    splits="train 9,888, val 3,120, test 3,118; the rarest group has 49 pairs in train and 28 in test",
    source="20,000 rows of MultiNLI, repeats dropped; a draw of its own, not the split of the papers",
    licence="that of MultiNLI: OANC and others; free for research",
    citation="Williams et al., A Broad-Coverage Challenge Corpus, NAACL 2018, arXiv:1704.05426",
)
LAYOUT = Layout(
    files=("mnli20k.csv.gz or mnli20k.csv",),
    folders=("text", "mnli20k"),
    markers=("mnli20k.csv.gz", "mnli20k.csv"),
    obtain="Write one from MultiNLI, with the columns premise, hypothesis, label, split, neg_gdro, neg_wide.",
)


@dataclass(frozen=True)
class MNLI20kConfig:
    """Where the file is, which words negate, and how the text is tokenised."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    negation: str = "gdro"  # gdro (nobody, no, never, nothing) or wide (more words)
    tokenizer: str = "auto"  # minilm where it is installed, else words
    max_length: int = 128  # tokens; as for MultiNLI
    seed: int = 0  # of the split between val and test


DEFAULT = MNLI20kConfig()


def mnli20k(config: MNLI20kConfig = DEFAULT) -> Splits:
    """Read the table and cut val in two."""
    check_choice(CARD, config, "negation", ("gdro", "wide"))
    check_least(CARD, config, max_length=4)
    folder = find(CARD.name, LAYOUT, config.root)
    path = next(folder / name for name in LAYOUT.markers if (folder / name).is_file())
    premises, hypotheses, y, a, split = _table(path, f"neg_{config.negation}")
    seeds = Seeds(config.seed)
    val = (split == 1).nonzero().flatten()
    if not bool((split == 2).any()):
        split[val[stratified((2 * y + a)[val], (0.0, 0.5, 0.5), seeds=seeds, classes=y[val])[2]]] = 2
    config = replace(config, tokenizer=choose_tokenizer(config.tokenizer))
    x = tokenise(premises, hypotheses, tokenizer=config.tokenizer, max_length=config.max_length)
    splits = assemble(Grouped(x, y, a, GROUPS), split, seeds=seeds, name=CARD.name, options=asdict(config))
    note = "This is a small part of MultiNLI with a split of its own: its numbers are not those of the papers."
    return compare(replace(splits, notes=(note,)), PAIRS)


def _table(path: Path, column: str) -> tuple[list[str], list[str], Tensor, Tensor, Tensor]:
    """Return premises, hypotheses, labels, attributes and splits; of rows that repeat a pair, the first."""
    cells = columns(path, ("premise", "hypothesis", "label", "split", column))
    y = codes(cells["label"], LABELS, path, "label")
    a = codes(cells[column], {"0": 0, "1": 1}, path, column)
    split = codes(cells["split"], SPLIT_NAMES, path, "split")
    first: dict[tuple[str, str], int] = {}
    for row, pair in enumerate(zip(cells["premise"], cells["hypothesis"], strict=True)):
        first.setdefault(pair, row)
    kept = torch.tensor(list(first.values()))
    return [p for p, _ in first], [h for _, h in first], y[kept], a[kept], split[kept]


DATASET = Dataset(card=CARD, config=MNLI20kConfig, make=mnli20k, layout=LAYOUT)
