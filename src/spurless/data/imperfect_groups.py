"""Imperfect partitions: data whose methods are given domains instead of groups.

Domains mix labels, as in Zhou, Ma, Michel and Neubig, "Examining and Combating Spurious Features under Distribution
Shift", ICML 2021, arXiv:2106.07171. A rule decides how many examples of every group are in each domain; the examples
are drawn by seed. Train and val get domains; evaluation on test uses label and attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from spurless.core.errors import InputError, MissingAttributesError
from spurless.core.seeds import Seeds
from spurless.data.split import Split, Splits

Rule: TypeAlias = Callable[[Split], Mapping[str, Tensor]]
"""A function from a split to its domains: by name, the number of examples of every group."""


def domains_by_attribute(split: Split) -> Mapping[str, Tensor]:
    """Return one domain per attribute value, for all labels: the paper's partition of FDCL18 by dialect.

    Example:
        >>> from spurless.data.datasets.synthetic import planted
        >>> {name: counts.tolist() for name, counts in domains_by_attribute(planted().val).items()}
        {'left': [523, 0, 487, 0], 'right': [0, 506, 0, 484]}
    """
    attribute = torch.arange(len(split.groups)) % len(split.groups.attributes)
    return {name: torch.where(attribute == a, split.counts, 0) for a, name in enumerate(split.groups.attributes)}


def celeba_domains(split: Split) -> Mapping[str, Tensor]:
    """Return the two domains of the paper's CelebA, for any two labels and two attributes.

    Domain 0 has all blond women and equally many other women, and no blond men. Domain 1 has all blond men, equally
    many other men, and the remaining women. So in each domain, hair is uninformative for one gender, and the rarest
    group is in a large domain.

    Example:
        >>> from spurless.data.datasets.synthetic import planted
        >>> celeba_domains(planted().val)["domain 0"].tolist()  # of 523, 506, 487, 484
        [487, 22, 487, 0]
    """
    counts = split.counts
    if (len(split.groups.labels), len(split.groups.attributes)) != (2, 2):
        what = "the partition of CelebA needs two labels and two attributes"
        raise InputError(what, got=", ".join(split.groups.names), hint="Use domains_by_attribute.")
    first = torch.stack(
        [counts[2].minimum(counts[0]), (counts[1] - counts[3]).clamp(min=0), counts[2], torch.zeros_like(counts[3])]
    )
    return {"domain 0": first, "domain 1": counts - first}


def with_imperfect_groups(data: Splits, rule: Rule, seed: int = 0) -> Splits:
    """Return the same data with domains in train and val, and a note.

    Raises:
        MissingAttributesError: an attribute is hidden or unknown.
        InputError: the attributes overlap, or the domains of the rule do not contain every example once.
    """
    seeds = Seeds(seed)
    train, val = (_add_domains(getattr(data, name), name, rule, seeds) for name in ("train", "val"))
    note = f"Methods are given {len(train.domains)} domains ({', '.join(train.domains)}) instead of groups."
    return replace(data, train=train, val=val, notes=(*data.notes, note))


def _add_domains(split: Split, name: str, rule: Rule, seeds: Seeds) -> Split:
    if not split.has_attributes:
        raise MissingAttributesError("An imperfect partition", name)
    g, domain = split.g, torch.zeros_like(split.y)
    domains = rule(split)
    table = torch.stack([counts.long() for counts in domains.values()])
    if not torch.equal(table.sum(dim=0), split.counts) or bool((table < 0).any()):
        what = "the domains of a partition must contain every example once"
        raise InputError(what, where=name, expected=f"{split.counts.tolist()} by group", got=table.sum(dim=0).tolist())
    for group in range(len(split.groups)):
        members = (g == group).nonzero().flatten()
        order = torch.randperm(len(members), generator=seeds.generator("domain", name, group))
        domain[members[order]] = torch.arange(len(domains)).repeat_interleave(table[:, group])
    return replace(split, domain=domain, domains=tuple(domains))
