"""``spurless data describe``: print the card of a dataset, the size of its groups and the strength of its shortcut."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spurless.cli.console import MAX_NAME_LENGTH, handle_warnings, print_fact, print_json, print_table, print_text
from spurless.cli.inputs import describe_files, open_data, resolve_named_options
from spurless.cli.ls import CARD_FIELDS, layout_fields, list_options
from spurless.cli.params import SPLITS, DataArgument, DataSeed, Json, Quiet, expand_params
from spurless.core.config import configure
from spurless.core.errors import IncompleteDataWarning, SpurlessError
from spurless.reporting.format import clean_name, format_percent

if TYPE_CHECKING:
    from torch import Tensor

    from spurless.data.split import Split, Splits
    from spurless.metrics.association import Association

MAX_ROWS = 24  # rows of a table; of more, the largest in train
MAX_NAMES = 6  # groups that are listed in a sentence
SMALL_GROUP = 20  # below it, one example of a group is worth more than 5 points
SAMPLED_INPUTS = 16  # inputs that are read of a streamed split
STRENGTHS = ((0.8, "very strongly"), (0.5, "strongly"), (0.2, "moderately"), (0.1, "weakly"), (0.0, "hardly"))
"""Words for Cramer's V, by its lower bound."""
ASSOCIATION_FIELDS = ("goodman_kruskal", "cramers_v", "cramers_v_corrected", "mutual_information", "normalised")


@expand_params
def describe(*, data: DataArgument, seed: DataSeed = 0, json: Json = False, quiet: Quiet = False) -> None:
    """Describe DATA: the card, the groups, and how well the attribute predicts the class.

    Labels and attributes are counted; large image datasets are not read. If the
    files of a named dataset are missing, the card and where to get the files are
    printed, and the exit status is 2.

    Examples:
      spurless data describe waterbirds --root ~/data
      spurless data describe patched-digits -D conflicting=0.05
      spurless data describe meta.csv --label y --attribute place --json
    """
    from spurless.data import DATASETS

    source, facts = data.data, dict[str, Any]()
    if source in DATASETS:
        dataset = DATASETS[source]
        options = {"seed": seed, **resolve_named_options(source, data.options, data.columns)}
        config = configure(dataset.config, options, owner=f"dataset {source!r}")  # raises before anything is printed
        needs = None if dataset.layout is None else layout_fields(dataset.layout)
        facts = {"card": asdict(dataset.card), "options": vars(config), "needs": needs}
        if not json:
            show_card(dataset, config, with_files=True)
    missing: list[str] = []
    try:
        with handle_warnings(IncompleteDataWarning, missing.append):
            splits = open_data(source, data.options, data.columns, seed, quiet, lazy=True)
    except SpurlessError:
        if facts and json:
            print_json(json_module.dumps(facts))
        raise
    facts |= {"files": describe_files(source, splits), "missing": list(dict.fromkeys(missing)), **compute_facts(splits)}
    if json:
        print_json(json_module.dumps(facts))
        return
    _show_inputs(facts)
    _show_groups(facts)
    _show_shortcut(facts)
    _show_small_groups(facts)


def show_card(dataset: Any, config: Any, with_files: bool = False) -> None:
    """Print the card and the options of a named dataset, and the files that it needs."""
    for field in CARD_FIELDS:
        print_fact(field, getattr(dataset.card, field))
    print_fact("options", list_options(config))
    if with_files and dataset.layout is not None:
        print_fact("needs", f"{', '.join(dataset.layout.file_names)}. {dataset.layout.obtain}")


def show_files(files: dict[str, Any]) -> None:
    """Print the files that were read."""
    if files["place"] is None:
        print_fact("files", "none needed")
    elif files["found"]:
        print_fact("files", ", ".join(files["found"]))
        show_path("in", files["place"])
    else:
        show_path("files", files["place"])


def show_path(word: str, path: object) -> None:
    """Print a word and a path on one line, so that the path can be copied."""
    print_text(f"{word:<10} {path}")


def _show_inputs(facts: dict[str, Any]) -> None:
    show_files(facts["files"])
    for sentence in facts["missing"]:
        print_fact("incomplete", sentence)
    for sentence in facts["notes"]:
        if sentence not in facts["missing"]:
            print_fact("note", sentence)
    inputs = facts["input"]
    if inputs["kind"] == "text":
        values = f"{inputs['shortest']} to {inputs['longest']} tokens, {inputs['mean']:.0f} on average"
    else:
        sample = f" (in {SAMPLED_INPUTS} samples)" if inputs["streamed"] else ""
        values = f"values from {inputs['low']:.4g} to {inputs['high']:.4g}{sample}"
    print_fact("inputs", f"{inputs['words']}; {values}")
    size = format_bytes(inputs["bytes"])
    print_fact("memory", f"{size} if all were loaded; read on demand" if inputs["streamed"] else f"{size}, loaded")


def format_bytes(count: int) -> str:
    """Write a number of bytes.

    Example:
        >>> format_bytes(2_352_000), format_bytes(999)
        ('2.4 MB', '999 bytes')
    """
    for unit, word in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {word}"
    return f"{count} bytes"


def _show_groups(facts: dict[str, Any]) -> None:
    totals = facts["examples"]
    for key, word in (("groups", "group"), ("identities", "attribute"), ("classes", "class")):
        rows = facts[key]
        if not rows or (key == "classes" and not facts["attributes"]):
            continue  # without attributes the groups are the classes
        title = f"{facts['name']}: {len(rows)} {'classes' if word == 'class' else f'{word}s'}"
        if len(rows) > MAX_ROWS:
            rows = sorted(rows, key=lambda row: -int(row["train"]))[:MAX_ROWS]
            title += f", the {MAX_ROWS} largest in train (all: --json)"
        cells = []
        for row in rows:
            sizes = [cell for part in SPLITS for cell in (f"{row[part]:,}", _fraction(row[part], totals[part]))]
            cells.append([clean_name(row["name"], MAX_NAME_LENGTH), *sizes])
        print_table(title, (word, *(head for part in SPLITS for head in (part, ""))), cells, right=range(1, 7))
        print_text()
    print_fact("in all", ", ".join(f"{part} {n:,}" for part, n in totals.items()))
    for part, n in facts["unknown"].items():
        if n:
            print_fact("unknown", f"{n:,} examples of {part} have no known attribute, so they are in no group")
    for part, rows in facts["domains"].items():
        print_fact("domains", f"given to methods in {part}: " + ", ".join(f"{r['name']} {r['count']:,}" for r in rows))


def _show_small_groups(facts: dict[str, Any]) -> None:
    for key, text in (("empty", "no examples"), ("tiny", f"under {SMALL_GROUP} examples")):
        for part, names in facts[key].items():
            if names:
                more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
                print_fact(key, f"{text} in {part}: {'; '.join(names[:MAX_NAMES])}{more}")


def _fraction(count: int, total: int) -> str:
    text = format_percent(count / total if total else None)
    return "<0.1 %" if count and text == "0.0 %" else text


def _show_shortcut(facts: dict[str, Any]) -> None:
    if not facts["shortcut"]:
        print_fact("shortcut", "unknown: the data have no attribute")
    for part, numbers in facts["shortcut"].items():
        name = f" {numbers['attribute']}, the strongest one," if numbers["attribute"] else ""
        strength = next(word for bound, word in STRENGTHS if numbers["cramers_v_corrected"] >= bound)
        print_fact(
            "shortcut",
            f"in {part} the attribute{name} is {strength} associated with the class: predicting from it makes "
            f"{100 * numbers['goodman_kruskal']:.0f} % fewer errors than always predicting the largest class "
            f"(Goodman-Kruskal), Cramer's V is {numbers['cramers_v']:.2f} ({numbers['cramers_v_corrected']:.2f} "
            f"corrected for chance), and it explains {100 * numbers['normalised']:.0f} % of the entropy of the class "
            f"({numbers['mutual_information']:.2f} bits)",
        )
    majority, rule = facts["guess"]["majority"], facts["guess"]["attribute"]
    more = f"; the most frequent class of each attribute in train, in {_rates(rule)}" if rule else ""
    print_fact(
        "guessing", f"always {majority['label']}, the largest class of train, is correct in {_rates(majority)}{more}"
    )


def _rates(rates: dict[str, Any]) -> str:
    return f"{format_percent(rates['train'])} of train and {format_percent(rates['test'])} of test"


def compute_facts(splits: Splits) -> dict[str, Any]:
    """Return everything that ``describe`` prints about the data, as plain values."""
    parts: dict[str, Split] = {part: getattr(splits, part) for part in SPLITS}
    groups = _rows(splits.groups.names, {part: split.counts for part, split in parts.items()})
    measured = {part: associate_known(parts[part]) for part in ("train", "test")}
    associations = {part: association for part, association in measured.items() if association is not None}
    overlap = {part: (split.a == 1).sum(dim=0) for part, split in parts.items()} if splits.groups.overlap else {}
    identities = _rows(splits.groups.attributes, overlap) if overlap else []
    return {
        "name": splits.name,
        "notes": list(splits.notes),
        "labels": list(splits.groups.labels),
        "attributes": list(splits.groups.attributes),
        "examples": {part: len(split) for part, split in parts.items()},
        "groups": groups,
        "classes": _rows(splits.groups.labels, {part: split.class_counts for part, split in parts.items()}),
        "identities": identities,
        "unknown": count_unknown(splits),
        "domains": {
            part: [{"name": name, "count": int((split.domain == i).sum())} for i, name in enumerate(split.domains)]
            for part, split in parts.items()
            if split.domain is not None and split.domains
        },
        "shortcut": {
            part: {name: getattr(association, name) for name in ("attribute", "n", *ASSOCIATION_FIELDS)}
            for part, association in associations.items()
        },
        "guess": guess_rates(splits, associations),
        "empty": {part: [row["name"] for row in groups if row[part] == 0] for part in SPLITS},
        "tiny": {part: [f"{r['name']} ({r[part]})" for r in groups if 0 < r[part] < SMALL_GROUP] for part in SPLITS},
        "input": _describe_inputs(splits),
    }


def count_unknown(splits: Splits) -> dict[str, int]:
    """Count the examples of each split whose attribute is unknown, so that they are in no group."""
    return {part: int((~splits.groups.known(getattr(splits, part).a)).sum()) for part in SPLITS}


def associate_known(split: Split) -> Association | None:
    """Measure the association of class and attribute; None if no attribute is known."""
    from spurless.metrics.association import associate

    # overlapping attributes are measured one by one, so that one known column suffices
    known = split.a >= 0 if split.groups.overlap else split.groups.known(split.a)
    if not split.groups.attributes or not bool(known.any()):
        return None
    return associate(split.y, split.a, split.groups)


def guess_rates(splits: Splits, associations: dict[str, Association]) -> dict[str, Any]:
    """Return the accuracy of two rules that ignore the input: the largest class, and the class of the attribute.

    Both are fitted on train. A value of the attribute that train does not have is predicted as the largest class.
    """
    largest = int(splits.train.class_counts.argmax())
    rates = {part: float((getattr(splits, part).y == largest).double().mean()) for part in ("train", "test")}
    majority = {"label": splits.groups.labels[largest], **rates}
    if set(associations) != {"train", "test"}:
        return {"majority": majority, "attribute": None}
    train, test = associations["train"], associations["test"]
    same = next((column for column in test.columns or (test,) if column.attribute == train.attribute), None)
    if same is None:  # the strongest of several overlapping attributes is unknown in test
        return {"majority": majority, "attribute": None}
    rule = train.counts.argmax(dim=0)
    rule[train.counts.sum(dim=0) == 0] = largest
    return {"majority": majority, "attribute": {"train": _rate(train.counts, rule), "test": _rate(same.counts, rule)}}


def _rate(counts: Tensor, rule: Tensor) -> float:
    return int(counts.gather(0, rule[None]).sum()) / int(counts.sum())


def _rows(names: tuple[str, ...], counts: dict[str, Tensor]) -> list[dict[str, Any]]:
    return [{"name": name, **{part: int(n[i]) for part, n in counts.items()}} for i, name in enumerate(names)]


def _describe_inputs(splits: Splits) -> dict[str, Any]:
    """Return what an input is and how much memory all of them take."""
    import torch

    total = sum(len(getattr(splits, part)) for part in SPLITS)
    x: Any = splits.train.x
    if isinstance(x, dict):
        mask = x["attention_mask"] if "attention_mask" in x else next(iter(x.values())) != 0
        lengths = mask.bool().sum(dim=1)
        return {
            "kind": "text",
            "words": f"text as token numbers ({', '.join(x)})",
            "shortest": int(lengths.min()),
            "longest": int(lengths.max()),
            "mean": float(lengths.double().mean()),
            "streamed": False,
            "bytes": sum(value[0].nbytes for value in x.values()) * total,
        }
    n = min(SAMPLED_INPUTS, len(x))
    sample = torch.stack([x[i * len(x) // n] for i in range(n)]) if splits.train.streamed else x
    first = x[0]
    return {
        "kind": "tensor",
        "words": describe_input(tuple(first.shape), str(first.dtype)),
        "shape": list(first.shape),
        "dtype": str(first.dtype).removeprefix("torch."),
        "low": float(sample.min()),
        "high": float(sample.max()),
        "streamed": splits.train.streamed,
        "bytes": first.nbytes * total,
    }


def is_picture(shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape is a grey or RGB image."""
    return len(shape) == 3 and shape[0] in (1, 3)


def describe_input(shape: tuple[int, ...], dtype: str) -> str:
    """Return what an input is.

    Example:
        >>> describe_input((3, 28, 28), "torch.uint8"), describe_input((2,), "torch.float32")
        ('RGB image, 28 x 28 pixels, uint8', '2 numbers, float32')
    """
    kind = dtype.removeprefix("torch.")
    if is_picture(shape):
        return f"{'RGB' if shape[0] == 3 else 'grey'} image, {shape[2]} x {shape[1]} pixels, {kind}"
    if len(shape) == 1:
        return f"{shape[0]} number{'' if shape[0] == 1 else 's'}, {kind}"
    return f"tensor {' x '.join(map(str, shape))}, {kind}"
