"""Partitions: any dataset with attributes, as a method sees it that is given domains in the place of its groups.

Groups of label and attribute are the clean partition, and what every split has by itself. An imperfect one is made of
domains that mix labels, as in Zhou, Ma, Michel and Neubig, "Examining and Combating Spurious Features under
Distribution Shift", ICML 2021, arXiv:2106.07171. A rule says how many of every group each domain gets; who that is, is
drawn by seed. Train and val get domains; test has none, and evaluation stays with label and attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from spurless.core.errors import BadInput, MissingAttributes
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Splits

Rule: TypeAlias = Callable[[Grouped], Mapping[str, Tensor]]
"""From a split to its domains, by name: how many examples of every group are in each."""


def by_attribute(split: Grouped) -> Mapping[str, Tensor]:
    """Make a domain of every attribute value, whatever the label: the paper's partition of FDCL18 by dialect.

    Example:
        >>> from spurless.data.planted import planted
        >>> {name: counts.tolist() for name, counts in by_attribute(planted().val).items()}
        {'left': [523, 0, 487, 0], 'right': [0, 506, 0, 484]}
    """
    of = torch.arange(len(split.groups)) % len(split.groups.attributes)
    return {name: torch.where(of == a, split.counts, 0) for a, name in enumerate(split.groups.attributes)}


def as_celeba(split: Grouped) -> Mapping[str, Tensor]:
    """Make the two domains of the paper's CelebA, of any two labels and two attributes.

    Domain 0 has all women who are blond and as many who are not, and no blond man. Domain 1 has all blond men and as
    many men who are not, and the other women. So in both, hair tells nothing of one gender, and the rarest group is
    among many.

    Example:
        >>> from spurless.data.planted import planted
        >>> as_celeba(planted().val)["domain 0"].tolist()  # of 523, 506, 487, 484
        [487, 22, 487, 0]
    """
    counts = split.counts
    if (len(split.groups.labels), len(split.groups.attributes)) != (2, 2):
        raise BadInput(
            "the partition of CelebA is one of two labels and two attributes",
            got=", ".join(split.groups.names),
            do="Use by_attribute.",
        )
    first = torch.stack(
        [counts[2].minimum(counts[0]), (counts[1] - counts[3]).clamp(min=0), counts[2], torch.zeros_like(counts[3])]
    )
    return {"domain 0": first, "domain 1": counts - first}


def imperfect(data: Splits, rule: Rule, seed: int = 0) -> Splits:
    """Return the same data with domains in train and val; their notes say so in every record.

    Args:
        data: with the attribute of every train and val example.
        rule: :func:`by_attribute`, :func:`as_celeba`, or one of your own.
        seed: draws who is in which domain.

    Raises:
        MissingAttributes: an attribute is hidden or unknown.
        BadInput: the attributes overlap, or the domains of the rule do not hold every example once.
    """
    seeds = Seeds(seed)
    train, val = (_divided(getattr(data, name), name, rule, seeds) for name in ("train", "val"))
    said = f"Methods are given {len(train.domains)} domains ({', '.join(train.domains)}) in the place of groups."
    return replace(data, train=train, val=val, notes=(*data.notes, said))


def _divided(split: Grouped, name: str, rule: Rule, seeds: Seeds) -> Grouped:
    if not split.has_attributes:
        raise MissingAttributes("An imperfect partition", name)
    g, domain = split.g, torch.zeros_like(split.y)
    wanted = rule(split)
    table = torch.stack([counts.long() for counts in wanted.values()])
    if not torch.equal(table.sum(dim=0), split.counts) or bool((table < 0).any()):
        raise BadInput(
            "the domains of a partition must hold every example once",
            where=name,
            expected=f"{split.counts.tolist()} by group",
            got=table.sum(dim=0).tolist(),
        )
    for group in range(len(split.groups)):
        members = (g == group).nonzero().flatten()
        order = torch.randperm(len(members), generator=seeds.generator("domain", name, group))
        domain[members[order]] = torch.arange(len(wanted)).repeat_interleave(table[:, group])
    return replace(split, domain=domain, domains=tuple(wanted))
