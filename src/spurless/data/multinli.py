"""MultiNLI: does a hypothesis follow from a premise? Hypotheses with a negation word are mostly contradictions.

Reads the official files ``multinli_1.0_train``, ``multinli_1.0_dev_matched`` and ``multinli_1.0_dev_mismatched``,
``.jsonl`` or ``.txt``, put one after another; pairs without a gold label ("-") are dropped. The split of the papers
is in ``metadata_random.csv`` of group_DRO, which has a row for every pair that is left, in that order; without it
the same shares (50/20/30) are drawn by seed. The pickled ``cached_*`` files of features are never opened.

Two ways to count negations. ``negation=2``, group_DRO: nobody, no, never or nothing stands in the hypothesis, or
none of them. ``negation=3``, GC-DRO: nobody or nothing (1, also where one of the others stands beside it), no or
never (2), or none (0). Punctuation is stripped and letters are made small before, and words end at spaces.

``partition="imperfect"`` is that of GC-DRO: where n is the level of negation and y the label, its fine groups are
numbered ``3 n + y`` (not ``3 y + n``, as ours), and 3, 7, 8 make domain 0; 4, 5, 6 domain 1; 0, 1, 2 domain 2. So
nobody and nothing go with contradiction in domain 0, no and never in domain 1, and domain 2 has no negations.

Deviations:
    * Where no metadata is there, the split is stratified by label and negation; group_DRO's is not.
    * GC-DRO gives the imperfect partition to training alone, and selects on the nine groups of val. Here train and
      val are both given in domains.
"""

from __future__ import annotations

import json
import string
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import BadInput, Incomplete
from spurless.core.groups import Groups
from spurless.core.places import data_folder
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.layout import Layout, compare, find
from spurless.data.limits import check_choice, check_least
from spurless.data.rows import codes, columns
from spurless.data.splitting import assemble, stratified
from spurless.data.text import choose_tokenizer, tokenise

LABELS = {"contradiction": 0, "entailment": 1, "neutral": 2}
NEGATIONS = {2: ("no negation", "negation"), 3: ("no negation", "nobody or nothing", "no or never")}
FIRST, SECOND = {"nobody", "nothing"}, {"no", "never"}
SHARES = (0.5, 0.2, 0.3)
PUBLISHED = {
    "train": (57498, 11158, 67376, 1521, 66630, 1992),
    "val": (22814, 4634, 26949, 613, 26655, 797),
    "test": (34597, 6655, 40496, 886, 39930, 1148),
}
PARTS = ("train", "dev_matched", "dev_mismatched")
DOMAIN_OF = (2, 2, 2, 0, 1, 1, 1, 0, 0)
DOMAINS = ("domain 0", "domain 1", "domain 2")
CARD = Card(
    name="multinli",
    summary="Does a hypothesis follow from a premise? Negation words mostly come with contradiction.",
    input="a pair of texts, at most max_length tokens together: input_ids, attention_mask, token_type_ids, int32",
    label="contradiction, entailment or neutral",
    attribute="whether the hypothesis has a negation word; two levels, or three",
    splits="train 206,175, val 82,462, test 123,712 (group_DRO)",
    source="MultiNLI 1.0: crowd-written hypotheses to premises of ten genres",
    licence="OANC and others, see its page; free for research",
    citation=(
        "Williams et al., A Broad-Coverage Challenge Corpus, NAACL 2018, arXiv:1704.05426; split: Sagawa et al., "
        "ICLR 2020, arXiv:1911.08731; partition: Zhou et al., Examining and Combating Spurious Features, ICML 2021"
    ),
)
LAYOUT = Layout(
    files=(
        *(f"multinli_1.0_{part}.jsonl or multinli_1.0_{part}.txt" for part in PARTS),
        "metadata_random.csv (for the published split)",
    ),
    folders=("multinli", "multinli/data", "multinli_1.0", "MultiNLI"),
    markers=("multinli_1.0_train.jsonl", "multinli_1.0_train.txt"),
    archives=("multinli_1.0.zip",),
    obtain=(
        "Get multinli_1.0.zip from the page of MultiNLI (cims.nyu.edu/~sbowman/multinli), and metadata_random.csv from "
        "the folder dataset_metadata/multinli of kohpangwei/group_DRO on GitHub."
    ),
)


@dataclass(frozen=True)
class MultiNLIConfig:
    """Where the files are, how negations are counted, and how the text is tokenised."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    negation: int = 2  # levels: 2 (group_DRO) or 3 (GC-DRO)
    partition: str = "clean"  # what methods are given: clean (label x negation) or imperfect (GC-DRO, 3 levels)
    tokenizer: str = "auto"  # minilm where installed, else words; group_DRO: bert-base-uncased, GC-DRO: roberta-base
    max_length: int = 128  # tokens; group_DRO
    seed: int = 0  # of the split, where metadata_random.csv is not there


DEFAULT = MultiNLIConfig()


def multinli(config: MultiNLIConfig = DEFAULT) -> Splits:
    """Read the three splits."""
    _check(config)
    folder = _folder(config.root)
    premises, hypotheses, y = _pairs(folder)
    a = torch.tensor([negation(text, config.negation) for text in hypotheses])
    split = _published_split(folder, y)
    notes: tuple[str, ...] = ()
    if split is None:
        notes = (
            f"This is not multinli as published: metadata_random.csv is not there, so the split of the {len(y):,} "
            f"pairs is drawn by seed {config.seed}.",
        )
        warnings.warn(notes[0], Incomplete, stacklevel=2)
    groups = Groups(tuple(LABELS), NEGATIONS[config.negation])
    config = replace(config, tokenizer=choose_tokenizer(config.tokenizer))
    x = tokenise(premises, hypotheses, tokenizer=config.tokenizer, max_length=config.max_length)
    whole = Grouped(x, y, a, groups)
    if config.partition == "imperfect":
        whole = replace(whole, domain=torch.tensor(DOMAIN_OF)[3 * a + y], domains=DOMAINS)
    seeds = Seeds(config.seed)
    split = _drawn_split(3 * y + a, seeds) if split is None else split
    splits = assemble(whole, split, seeds=seeds, name=CARD.name, options=asdict(config))
    splits = replace(splits, test=replace(splits.test, domain=None, domains=()), notes=notes)
    if notes:
        return splits
    return compare(splits, PUBLISHED if config.negation == 2 else {k: sum(v) for k, v in PUBLISHED.items()})


def negation(hypothesis: str, levels: int = 2) -> int:
    """Return the level of negation of a hypothesis.

    Example:
        >>> [negation(text) for text in ("No, it was not.", "There is nobody, ever.", "It wasn't noble.")]
        [1, 1, 0]
        >>> [negation(text, 3) for text in ("No, it was not.", "There is nobody, never.", "It wasn't noble.")]
        [2, 1, 0]
    """
    words = set(hypothesis.translate(_BARE).lower().split(" "))
    if levels == 2:
        return int(bool(words & (FIRST | SECOND)))
    return 1 if words & FIRST else 2 if words & SECOND else 0


_BARE = str.maketrans("", "", string.punctuation)


def _check(config: MultiNLIConfig) -> None:
    check_choice(CARD, config, "partition", ("clean", "imperfect"))
    check_least(CARD, config, max_length=4)
    if config.negation not in NEGATIONS:
        raise BadInput("option 'negation' is unknown", where=CARD.name, expected="2 or 3", got=config.negation)
    if config.partition == "imperfect" and config.negation != 3:
        raise BadInput(
            "the imperfect partition has three levels of negation",
            where=CARD.name,
            got=f"negation={config.negation}",
            do="Pass negation=3.",
        )


def _folder(root: str | None) -> Path:
    try:
        return find(CARD.name, LAYOUT, root)
    except BadInput:
        top = data_folder(root)
        for folder in (top, *(top / part for part in (*LAYOUT.folders, "multinli/glue_data/MNLI"))):
            if any(folder.glob("cached_*mnli*")):
                raise BadInput(
                    "only the cached features of multinli are there: they are pickles, which can run any code when "
                    "they are opened, so they are not",
                    where=folder,
                    expected="multinli_1.0_train.jsonl",
                    do=LAYOUT.obtain,
                ) from None
        raise


def _pairs(folder: Path) -> tuple[list[str], list[str], Tensor]:
    """Return premises, hypotheses and labels of the three files, one after another."""
    premises: list[str] = []
    hypotheses: list[str] = []
    labels: list[int] = []
    for part in PARTS:
        paths = [folder / f"multinli_1.0_{part}{suffix}" for suffix in (".jsonl", ".txt")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise BadInput("a file of multinli is missing", where=paths[0], do="Unpack multinli_1.0.zip again.")
        for number, (label, premise, hypothesis) in _rows(path):
            if label == "-":
                continue
            if label not in LABELS:
                raise BadInput(f"the gold label {label!r} is unknown", where=_line(path, number), expected=_words())
            labels.append(LABELS[label])
            premises.append(premise)
            hypotheses.append(hypothesis)
    return premises, hypotheses, torch.tensor(labels, dtype=torch.long)


def _rows(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """Yield the number of every line and its gold label, premise and hypothesis."""
    fields = ("gold_label", "sentence1", "sentence2")
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            # not as CSV: the table has quotes that belong to the text, and rows with fewer labels than the header
            header = next(file, "").rstrip("\r\n").split("\t") if path.suffix == ".txt" else []
            for number, line in enumerate(file, start=2 if header else 1):
                cells = line.rstrip("\r\n").split("\t")
                row = dict(zip(header, cells, strict=False)) if header else json.loads(line)
                yield number, (str(row[fields[0]]), str(row[fields[1]]), str(row[fields[2]]))
    except UnicodeDecodeError as error:
        raise BadInput(f"the file is not UTF-8: {error}", where=path) from None
    except (KeyError, TypeError):
        raise BadInput(f"a line lacks {', '.join(fields)}", where=_line(path, number)) from None
    except json.JSONDecodeError as error:
        raise BadInput(f"the line is not JSON: {error}", where=_line(path, number)) from None


def _published_split(folder: Path, y: Tensor) -> Tensor | None:
    """Return the split that group_DRO drew, if its table is there and speaks of these pairs."""
    paths = (folder / "metadata_random.csv", folder / "data" / "metadata_random.csv")
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    cells = columns(path, ("gold_label", "split"))
    numbers = {str(k): k for k in range(3)}
    labels, split = (codes(cells[name], numbers, path, name) for name in ("gold_label", "split"))
    if len(labels) != len(y):
        raise BadInput(
            "the table has another number of pairs than the files", where=path, expected=f"{len(y):,}", got=len(labels)
        )
    if not torch.equal(labels, y):
        row = int((labels != y).nonzero()[0])
        raise BadInput(
            "the gold label is not that of the pair in the files",
            where=f"{path}, row {row + 2}",
            expected=list(LABELS)[int(y[row])],
            got=list(LABELS)[int(labels[row])],
        )
    return split


def _drawn_split(cells: Tensor, seeds: Seeds) -> Tensor:
    split = torch.zeros_like(cells)
    for number, members in enumerate(stratified(cells, SHARES, seeds=seeds)):
        split[members] = number
    return split


def _line(path: Path, number: int) -> str:
    return f"{path}, line {number}"


def _words() -> str:
    return ", ".join((*LABELS, "-"))


DATASET = Dataset(card=CARD, config=MultiNLIConfig, make=multinli, layout=LAYOUT)
