"""Gather: from loose records to studies, one per dataset, of arms, one per method and configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from spurless.core.records import Record
from spurless.reporting.arms import Arm, Study
from spurless.reporting.words import SIZES

SPELLING = {
    "erm": "ERM",
    "watched-erm": "Watched ERM",
    "focal": "Focal loss",
    "jtt": "JTT",
    "dfr": "DFR",
    "dcwp": "DCWP",
    "avp": "AVP",
    "mrm": "MRM",
    "lff": "LfF",
    "disent": "DisEnt",
    "end": "EnD",
    "rebias": "ReBias",
    "afr": "AFR",
    "self": "SELF",
    "jtt-head": "JTT on the head",
    "group-dro": "Group DRO",
    "greedy-dro": "Greedy DRO",
    "gc-dro": "GC-DRO",
    "cvar-dro": "CVaR DRO",
    "masktune": "MaskTune",
    "neurontune": "NeuronTune",
}
"""how a person writes a method; a name that is not here stays as it is"""
SAID = 3
"""settings that a name has room for"""


def studies(records: Sequence[Record]) -> tuple[Study, ...]:
    """Gather records into studies (one dataset each) of arms (one method and configuration each) over seeds.

    Records with the same key are the same run and count once.
    """
    distinct = list({record.key or f"#{n}": record for n, record in enumerate(records)}.values())
    by_data = [runs for family in _gather(distinct, lambda r: [_name(r), _options(r)]) for runs in _datasets(family)]
    families = [json.dumps([_name(runs[0]), _options(runs[0])], sort_keys=True, default=str) for runs in by_data]
    contents = [
        # contents are told where nothing a person would say tells two datasets apart
        _options(runs[0]) | ({"fingerprint": runs[0].data.get("fingerprint")} if families.count(family) > 1 else {})
        for runs, family in zip(by_data, families, strict=True)
    ]
    names = _tell_apart([_name(runs[0]) for runs in by_data], contents)
    return tuple(Study(name, _arms(runs)) for name, runs in zip(names, by_data, strict=True))


def _gather(records: Sequence[Record], key: Callable[[Record], Any]) -> list[list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(json.dumps(key(record), sort_keys=True, default=str), []).append(record)
    return list(found.values())


def _arms(records: list[Record]) -> tuple[Arm, ...]:
    runs = _gather(records, lambda r: [r.method, _settings(r)])
    names = _tell_apart(
        [SPELLING.get(run[0].method, run[0].method) for run in runs], [_settings(run[0]) for run in runs]
    )
    arms = [Arm(n, tuple(sorted(run, key=lambda r: r.seed))) for n, run in zip(names, runs, strict=True)]
    plain = [arm for arm in arms if arm.name == SPELLING["erm"]]  # the others vary it
    first = next(iter(plain or [arm for arm in arms if arm.method == "erm"] or arms))
    return (first, *(arm for arm in arms if arm is not first))


def _settings(record: Record) -> dict[str, Any]:
    """Return everything but the seed that tells one arm from another, in the words a person would use."""
    walk = {k if k not in record.config else f"train.{k}": v for k, v in record.train.items() if k != "seed"}
    model = {k: v for k, v in record.model.items() if k not in SIZES}
    return {**record.config, **walk, "model": model, "selection": record.selection}


def _options(record: Record) -> dict[str, Any]:
    """Return the options of the data, but for the seed that drew them."""
    options = record.data.get("options")
    return {key: value for key, value in options.items() if key != "seed"} if isinstance(options, dict) else {}


def _datasets(records: list[Record]) -> list[list[Record]]:
    """Return the records of equal name and options as one dataset, drawn anew with every seed of its own.

    Where one such seed has two contents, or there is none, contents are datasets.
    """
    seeds = [record.data.get("options", {}).get("seed") for record in records]
    drawn = {(seed, record.data.get("fingerprint")) for seed, record in zip(seeds, records, strict=True)}
    if None not in seeds and len(drawn) == len(set(seeds)):
        return [records]
    return _gather(records, lambda r: r.data.get("fingerprint"))


def _name(record: Record) -> str:
    return str(record.data.get("name", "data"))


def _tell_apart(names: list[str], settings: list[dict[str, Any]]) -> list[str]:
    """Add to equal names the settings in which they differ, and a number where even those are equal.

    The commonest value of a setting goes without saying: of many variations of one run, each says what it varies.
    """
    full = []
    for name, mine in zip(names, settings, strict=True):
        twins = [other for n, other in zip(names, settings, strict=True) if n == name]
        spoken = [f"{k} {_brief(v)}" for k, v in mine.items() if not _usual(v, [other.get(k) for other in twins])]
        full.append(f"{name} ({', '.join(spoken[:SAID])})" if spoken else name)
    return [n if full.count(n) == 1 else f"{n} #{full[: i + 1].count(n)}" for i, n in enumerate(full)]


def _usual(value: Any, values: Sequence[Any]) -> bool:
    """Return whether more of these have this value than any other."""
    (most, times), *others = Counter(json.dumps(other, default=str) for other in values).most_common(2)
    return most == json.dumps(value, default=str) and all(times > count for _, count in others)


def _brief(value: Any) -> str:
    return str(value.get("name", value)) if isinstance(value, dict) else str(value)
