"""``spurless data describe``: what a dataset is, how its groups are filled, and how strong its shortcut is."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Any

from spurless.cli.console import fact, share, table
from spurless.cli.data_facts import PARTS, TINY, facts_of, short, tell_files
from spurless.cli.flags import (
    CsvAttribute,
    CsvFeatures,
    CsvFile,
    CsvLabel,
    CsvRoot,
    CsvSplit,
    CsvText,
    DataArgument,
    DataOption,
    Json,
    Quiet,
    Seed,
    SkipBad,
)
from spurless.cli.ls import CARD_FIELDS, options_of
from spurless.cli.sources import Columns, files_read, named_options, noting_what_is_missing, open_data
from spurless.core.errors import SpurlessError
from spurless.core.options import configure, pairs

MOST = 24
"""rows of a table; of more, the largest in train"""
NAMED = 6
"""groups that a sentence names"""
STRENGTHS = ((0.8, "most"), (0.5, "much"), (0.2, "something"), (0.1, "little"), (0.0, "hardly anything"))
"""from which Cramer's V on the attribute tells how much of the label"""


def describe(
    source: DataArgument,
    data_option: DataOption = [],
    label: CsvLabel = None,
    attribute: CsvAttribute = None,
    split: CsvSplit = None,
    features: CsvFeatures = None,
    file: CsvFile = None,
    text: CsvText = None,
    root: CsvRoot = None,
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what DATA are: the card, the groups, and how much the attribute tells of the label.

    Labels and attributes are counted; images are not read, if they are many.
    For a named dataset whose files are missing, the card and where to get it
    are printed, and the exit status is 2.

    Examples:
      spurless data describe waterbirds --root ~/data
      spurless data describe patched-digits -D conflicting=0.05
      spurless data describe meta.csv --label y --attribute place --json
    """
    from spurless.data import DATASETS

    options = pairs(data_option, "--data-option")
    columns = Columns(label, attribute, split, features, file, root, text, skip_bad)
    told: dict[str, Any] = {}
    if source in DATASETS:
        dataset = DATASETS[source]
        named = {"seed": seed, **named_options(source, options, columns)}
        config = configure(dataset.config, named, owner=f"dataset {source!r}")  # a wrong one is refused at once
        told = {"card": asdict(dataset.card), "options": vars(config), "needs": _needs(dataset.layout)}
        if not json:
            _tell_card(dataset, config)
    try:
        with noting_what_is_missing() as missing:
            splits = open_data(source, options, columns, seed, quiet, lazy=True)
    except SpurlessError:
        if told and json:
            print(json_module.dumps(told))
        raise
    told |= {"files": files_read(source, splits), "missing": list(dict.fromkeys(missing)), **facts_of(splits)}
    if json:
        print(json_module.dumps(told))
        return
    _tell_inputs(told)
    _tell_groups(told)
    _tell_shortcut(told)
    _tell_gaps(told)


def _needs(layout: Any) -> dict[str, Any] | None:
    if layout is None:
        return None
    lists = {field: list(getattr(layout, field)) for field in ("files", "folders", "archives")}
    return {**lists, "obtain": layout.obtain, "download": layout.download is not None}


def _tell_card(dataset: Any, config: Any) -> None:
    for field in CARD_FIELDS:
        fact(field, getattr(dataset.card, field))
    fact("options", options_of(config))
    if dataset.layout is not None:
        fact("needs", f"{', '.join(dataset.layout.files)}. {dataset.layout.obtain}")


def _tell_inputs(told: dict[str, Any]) -> None:
    tell_files(told["files"])
    for sentence in told["missing"]:
        fact("not whole", sentence)
    for sentence in told["notes"]:
        if sentence not in told["missing"]:
            fact("note", sentence)
    about = told["input"]
    fact("inputs", f"{about['words']}{_range(about)}")
    size = _size(about["bytes"])
    fact("memory", f"read on demand; all inputs would need {size}" if about["streamed"] else f"{size}, held")


def _range(about: dict[str, Any]) -> str:
    if about["kind"] == "text":
        return f"; {about['shortest']} to {about['longest']} tokens, {about['mean']:.0f} on average"
    where = " in a few that were read" if about["streamed"] else ""
    return f"; values from {about['low']:.4g} to {about['high']:.4g}{where}"


def _size(count: int) -> str:
    """Write a number of bytes.

    Example:
        >>> _size(2_352_000), _size(999)
        ('2.4 MB', '999 bytes')
    """
    for unit, word in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {word}"
    return f"{count} bytes"


def _tell_groups(told: dict[str, Any]) -> None:
    totals = {part: told["examples"][part] for part in PARTS}
    kinds = [("groups", "group"), ("identities", "attribute"), ("classes", "class")]
    for key, word in kinds:
        rows = told[key]
        if not rows or (key == "classes" and not told["attributes"]):
            continue  # without attributes the groups are the classes
        title = f"{told['name']}: {len(rows)} {'classes' if word == 'class' else f'{word}s'}"
        if len(rows) > MOST:
            rows = sorted(rows, key=lambda row: -int(row["train"]))[:MOST]
            title += f", the {MOST} largest in train (all: --json)"
        cells = [
            [short(row["name"]), *(cell for part in PARTS for cell in (f"{row[part]:,}", _of(row[part], totals[part])))]
            for row in rows
        ]
        table(title, (word, *(head for part in PARTS for head in (part, ""))), cells, right=range(1, 7))
        print()
    fact("in all", ", ".join(f"{part} {n:,}" for part, n in totals.items()))
    for part, n in told["unknown"].items():
        if n:
            fact("unknown", f"{n:,} examples of {part} have no known attribute, so they are in no group")
    for part, rows in told["domains"].items():
        fact("domains", f"methods are given these in {part}: " + ", ".join(f"{r['name']} {r['count']:,}" for r in rows))


def _of(count: int, total: int) -> str:
    text = share(count / total if total else None)
    return "<0.1 %" if count and text == "0.0 %" else text


def _tell_shortcut(told: dict[str, Any]) -> None:
    found = told["shortcut"]
    if not found:
        fact("shortcut", "no attribute is known, so nothing can be said of one")
    for part, numbers in found.items():
        of = f" ({numbers['attribute']}, the one that tells most)" if numbers["attribute"] else ""
        fact(
            "shortcut",
            f"in {part} the attribute{of} tells {_strength(numbers['cramers_v_corrected'])} of the label: it removes "
            f"{100 * numbers['goodman_kruskal']:.0f} % of the mistakes of guessing the largest class "
            f"(Goodman-Kruskal), Cramer's V is {numbers['cramers_v']:.2f} ({numbers['cramers_v_corrected']:.2f} "
            f"without what chance alone would show), and it explains {100 * numbers['normalised']:.0f} % of the "
            f"label's entropy ({numbers['mutual_information']:.2f} bits)",
        )
    majority, rule = told["guess"]["majority"], told["guess"]["attribute"]
    more = f"; the label that goes with the attribute in train, in {_pair(rule)}" if rule else ""
    fact("guessing", f"always {majority['label']}, the largest class of train, is right in {_pair(majority)}{more}")


def _strength(v: float) -> str:
    """Put Cramer's V in words."""
    return next(word for bound, word in STRENGTHS if v >= bound)


def _pair(rates: dict[str, Any]) -> str:
    return f"{share(rates['train'])} of train and {share(rates['test'])} of test"


def _tell_gaps(told: dict[str, Any]) -> None:
    for key, word in (("empty", "no examples"), ("tiny", f"under {TINY} examples")):
        for part, names in told[key].items():
            if names:
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                fact(key, f"{word} in {part}: {'; '.join(names[:NAMED])}{more}")
