"""Facts: what can be said of a dataset from its labels and attributes, with hardly an input read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spurless.cli.console import fact

if TYPE_CHECKING:
    from torch import Tensor

    from spurless.data.grouped import Grouped, Splits
    from spurless.metrics.association import Association

PARTS = ("train", "val", "test")
TINY = 20
"""examples under which a group is called tiny: one of them is worth more than 5 points"""
LOOKED_AT = 16
"""inputs that are read of a streamed split"""
ROOM = 32
"""letters of a name in a table, so that its numbers have room too"""
NUMBERS = ("goodman_kruskal", "cramers_v", "cramers_v_corrected", "mutual_information", "normalised")


def facts_of(splits: Splits) -> dict[str, Any]:
    """Return everything that ``describe`` says of the data, as plain values."""
    parts: dict[str, Grouped] = {part: getattr(splits, part) for part in PARTS}
    groups = _rows(splits.groups.names, {part: split.counts for part, split in parts.items()})
    found = {part: measured for part in ("train", "test") if (measured := association(parts[part])) is not None}
    return {
        "name": splits.name,
        "notes": list(splits.notes),
        "labels": list(splits.groups.labels),
        "attributes": list(splits.groups.attributes),
        "examples": {part: len(split) for part, split in parts.items()},
        "groups": groups,
        "classes": _rows(splits.groups.labels, {part: split.class_counts for part, split in parts.items()}),
        "identities": _identities(parts),
        "unknown": unknown_in(splits),
        "domains": {part: _domains(split) for part, split in parts.items() if split.domain is not None},
        "shortcut": {part: _numbers(measured) for part, measured in found.items()},
        "guess": guesses(splits, found),
        "empty": {part: [row["name"] for row in groups if row[part] == 0] for part in PARTS},
        "tiny": {part: [f"{r['name']} ({r[part]})" for r in groups if 0 < r[part] < TINY] for part in PARTS},
        "input": _input(splits),
    }


def unknown_in(splits: Splits) -> dict[str, int]:
    """Count the examples of each split whose attribute is unknown, so that they are in no group."""
    parts: dict[str, Grouped] = {part: getattr(splits, part) for part in PARTS}
    return {part: int((~split.groups.known(split.a)).sum()) for part, split in parts.items()}


def short(name: str) -> str:
    """Cut a long name.

    Example:
        >>> short("x" * 50)
        'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'
    """
    return name if len(name) <= ROOM else name[: ROOM - 1].rstrip() + "…"


def tell_files(files: dict[str, Any]) -> None:
    """Print which files were read; a path is never broken, so that it can be copied."""
    if files["place"] is None:
        fact("files", "none needed")
    elif files["found"]:
        fact("files", ", ".join(files["found"]))
        tell_place("in", files["place"])
    else:
        tell_place("files", files["place"])


def tell_place(word: str, path: object) -> None:
    """Print a word and a path."""
    print(f"{word:<10} {path}")


def association(split: Grouped) -> Association | None:
    """Measure how label and attribute go together; None where no attribute is known."""
    from spurless.metrics.association import associate

    known = (
        split.a >= 0 if split.groups.overlap else split.groups.known(split.a)
    )  # overlapping ones are told one by one
    if not split.groups.attributes or not bool(known.any()):
        return None
    return associate(split.y, split.a, split.groups)


def guesses(splits: Splits, found: dict[str, Association]) -> dict[str, Any]:
    """Return how often two rules that look at no input are right: the largest class, and the attribute.

    Both are learnt on train. A value of the attribute that train does not have is guessed to be of the largest class.
    """
    largest = int(splits.train.class_counts.argmax())
    rates = {part: float((getattr(splits, part).y == largest).double().mean()) for part in ("train", "test")}
    majority = {"label": splits.groups.labels[largest], **rates}
    if set(found) != {"train", "test"}:
        return {"majority": majority, "attribute": None}
    train = found["train"].counts
    rule = train.argmax(dim=0)
    rule[train.sum(dim=0) == 0] = largest
    same = _same(found["test"], found["train"].attribute)
    if same is None:
        return {"majority": majority, "attribute": None}
    return {"majority": majority, "attribute": {"train": _rate(train, rule), "test": _rate(same.counts, rule)}}


def _same(measured: Association, attribute: str) -> Association | None:
    """Return the association of the same one of several overlapping attributes; None where nobody knows it."""
    every = measured.columns or (measured,)
    return next((column for column in every if column.attribute == attribute), None)


def _rate(counts: Tensor, rule: Tensor) -> float:
    return int(counts.gather(0, rule[None]).sum()) / int(counts.sum())


def _numbers(measured: Association) -> dict[str, Any]:
    return {"attribute": measured.attribute, "n": measured.n, **{name: getattr(measured, name) for name in NUMBERS}}


def _rows(names: tuple[str, ...], counts: dict[str, Tensor]) -> list[dict[str, Any]]:
    return [{"name": name, **{part: int(n[i]) for part, n in counts.items()}} for i, name in enumerate(names)]


def _identities(parts: dict[str, Grouped]) -> list[dict[str, Any]]:
    """Count who has each of several overlapping attributes; nothing to say where they do not overlap."""
    groups = parts["train"].groups
    if not groups.overlap:
        return []
    return _rows(groups.attributes, {part: (split.a == 1).sum(dim=0) for part, split in parts.items()})


def _domains(split: Grouped) -> list[dict[str, Any]]:
    if split.domain is None:
        return []
    return [{"name": name, "count": int((split.domain == i).sum())} for i, name in enumerate(split.domains)]


def _input(splits: Splits) -> dict[str, Any]:
    """Say what an input is and how much memory all of them take."""
    from spurless.cli.data_examples import input_words

    total = sum(len(getattr(splits, part)) for part in PARTS)
    x: Any = splits.train.x
    if isinstance(x, dict):
        return _text(x, sum(value[0].nbytes for value in x.values()) * total)
    some = x if not splits.train.streamed else _some(x)
    first = x[0]
    return {
        "kind": "tensor",
        "words": input_words(tuple(first.shape), str(first.dtype)),
        "shape": list(first.shape),
        "dtype": str(first.dtype).removeprefix("torch."),
        "low": float(some.min()),
        "high": float(some.max()),
        "streamed": splits.train.streamed,
        "bytes": first.nbytes * total,
    }


def _some(source: Any) -> Tensor:
    """Read a few inputs of a source, from all over it."""
    import torch

    n = min(LOOKED_AT, len(source))
    return torch.stack([source[i * len(source) // n] for i in range(n)])


def _text(x: dict[str, Tensor], size: int) -> dict[str, Any]:
    mask = x["attention_mask"] if "attention_mask" in x else next(iter(x.values())) != 0
    lengths = mask.bool().sum(dim=1)
    return {
        "kind": "text",
        "words": f"text as token numbers ({', '.join(x)})",
        "shortest": int(lengths.min()),
        "longest": int(lengths.max()),
        "mean": float(lengths.double().mean()),
        "streamed": False,
        "bytes": size,
    }
