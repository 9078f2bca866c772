"""Partitions: domains have the published sizes, hold everyone once, and reach methods and never the test split."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError, MissingAttributesError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.datasets.celeba import FIRST_DOMAIN, PUBLISHED
from spurless.data.datasets.celeba import _assign_domains as published_partition
from spurless.data.datasets.synthetic import planted
from spurless.data.imperfect_groups import celeba_domains, domains_by_attribute, with_imperfect_groups
from spurless.data.split import Split, Splits

HAIR = Groups(("not blond", "blond"), ("female", "male"))
DIALECTS = Groups(("normal", "hateful", "spam"), ("A", "B"))


def split(groups: Groups, counts: tuple[int, ...]) -> Split:
    """So many examples of every group, in a shuffled order."""
    g = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    g = g[torch.randperm(len(g), generator=Seeds(7).generator("order"))]
    y, a = groups.decode(g)
    return Split(torch.arange(float(len(g)))[:, None], y, a, groups)


def by_domain(part: Split) -> list[list[int]]:
    assert part.domain is not None
    return [
        torch.bincount(part.g[part.domain == d], minlength=len(part.groups)).tolist() for d in range(len(part.domains))
    ]


@pytest.mark.parametrize("name", ["train", "val"])
def test_the_rule_of_celeba_gives_the_published_numbers(name: str) -> None:
    found = celeba_domains(split(HAIR, PUBLISHED[name]))
    assert tuple(found["domain 0"].tolist()) == FIRST_DOMAIN[name]
    assert (found["domain 0"] + found["domain 1"]).tolist() == list(PUBLISHED[name])


def test_on_the_whole_of_celeba_the_same_people_are_drawn_as_by_its_own_option() -> None:
    whole = split(HAIR, PUBLISHED["val"])
    data = with_imperfect_groups(Splits(whole, whole, whole), celeba_domains, seed=3)
    assert torch.equal(data.val.domain, published_partition(whole, "val", Seeds(3)).domain)  # type: ignore[arg-type]  # both have one


def test_domains_by_hand_and_where_a_group_is_larger_than_expected() -> None:
    train, val = split(HAIR, (9, 8, 4, 2)), split(HAIR, (3, 1, 5, 2))
    data = with_imperfect_groups(Splits(train, val, val), celeba_domains)
    assert by_domain(data.train) == [[4, 6, 4, 0], [5, 2, 0, 2]]
    assert by_domain(data.val) == [[3, 0, 5, 0], [0, 1, 0, 2]]  # fewer dark-haired women than blond: all of them


def test_by_attribute_every_value_is_a_domain() -> None:
    part = split(DIALECTS, (5, 4, 3, 2, 1, 6))
    data = with_imperfect_groups(Splits(part, part, part), domains_by_attribute)
    assert data.train.domains == ("A", "B")
    assert by_domain(data.train) == [[5, 0, 3, 0, 1, 0], [0, 4, 0, 2, 0, 6]]
    assert torch.equal(data.train.domain, data.train.a)  # type: ignore[arg-type]  # it has one


def test_a_method_is_given_domains_and_the_test_split_keeps_its_groups() -> None:
    clean = planted()
    data = with_imperfect_groups(clean, celeba_domains)
    shown = data.visible(train_attributes=True, val_labels=True, val_attributes=True)
    for given in (shown.train, shown.val):
        assert given.groups.names == ("domain 0", "domain 1")
    assert data.test is clean.test
    assert data.groups == clean.groups
    assert data.fingerprint() != clean.fingerprint()
    assert data.notes[-1] == "Methods are given 2 domains (domain 0, domain 1) instead of groups."
    assert clean.train.domain is None


def test_the_seed_draws_who_is_where_and_each_split_draws_for_itself() -> None:
    part = split(HAIR, (90, 80, 40, 20))
    first, again, other = (
        with_imperfect_groups(Splits(part, part, part), celeba_domains, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first.train.domain, again.train.domain)  # type: ignore[arg-type]  # both have one
    assert not torch.equal(first.train.domain, other.train.domain)  # type: ignore[arg-type]
    assert not torch.equal(first.train.domain, first.val.domain)  # type: ignore[arg-type]
    assert by_domain(first.train) == by_domain(other.train)


def test_rules_and_data_that_do_not_fit_are_refused() -> None:
    part, three = split(HAIR, (4, 4, 4, 4)), split(DIALECTS, (2, 2, 2, 2, 2, 2))
    whole = Splits(part, part, part)
    with pytest.raises(
        InputError, match=r"needs two labels and two attributes \(got normal, A, .*\)\. Use domains_by_attribute"
    ):
        with_imperfect_groups(Splits(three, three, three), celeba_domains)
    with pytest.raises(
        MissingAttributesError, match=r"An imperfect partition needs the attribute a .* of the val split"
    ):
        with_imperfect_groups(replace(whole, val=part.hide_attributes()), domains_by_attribute)

    def forgets(each: Split) -> Mapping[str, Tensor]:
        return {"some": each.counts - 1}

    def owes(each: Split) -> Mapping[str, Tensor]:
        return {"more": each.counts + 1, "less": torch.full_like(each.counts, -1)}

    for rule in (forgets, owes):
        with pytest.raises(InputError, match=r"train: the domains of a partition must contain every example once"):
            with_imperfect_groups(whole, rule)
