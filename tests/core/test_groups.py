"""Groups: every pair has one number, and every number one pair."""

from itertools import product

import pytest
import torch

from spurless.core.errors import InputError, MissingAttributesError
from spurless.core.groups import Groups

BIRDS = Groups(("landbird", "waterbird"), ("land", "water"))
FACES = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "middle", "old")})
TALK = Groups.overlapping(("civil", "toxic"), ("male", "female", "white"))


@pytest.mark.parametrize(("n_labels", "n_attributes"), [(2, 2), (2, 5), (10, 3), (1, 1)])
def test_decode_is_the_inverse_of_encode_for_every_pair(n_labels: int, n_attributes: int) -> None:
    groups = Groups(tuple(map(str, range(n_labels))), tuple(map(str, range(n_attributes))))
    y, a = torch.tensor(list(product(range(n_labels), range(n_attributes)))).T
    g = groups.encode(y, a)
    assert g.tolist() == list(range(len(groups)))  # the attribute runs fastest
    back_y, back_a = groups.decode(g)
    assert torch.equal(back_y, y)
    assert torch.equal(back_a, a)


def test_names_are_in_group_order() -> None:
    assert BIRDS.names == ("landbird, land", "landbird, water", "waterbird, land", "waterbird, water")
    assert len(BIRDS) == 4


def test_without_attributes_the_groups_are_the_classes() -> None:
    groups = Groups(("a", "b", "c"))
    y, a = torch.tensor([2, 0, 1]), torch.full((3,), -1)
    assert (len(groups), groups.names) == (3, ("a", "b", "c"))
    assert groups.encode(y, a).tolist() == [2, 0, 1]
    assert groups.known(a).tolist() == [True, True, True]
    assert groups.decode(y)[0].tolist() == [2, 0, 1]
    assert groups.membership(y, a).int().tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_crossed_columns_fold_with_the_last_running_fastest() -> None:
    y, gender, age = torch.tensor(list(product(range(2), range(2), range(3)))).T
    a = torch.stack([gender, age], dim=1)
    assert FACES.encode(y, a).tolist() == list(range(12))
    assert FACES.sizes == (2, 3)
    assert FACES.name(10) == "yes, m & middle"  # 10 = 1 * 6 + 1 * 3 + 1


def test_a_folded_column_is_taken_as_it_is() -> None:
    assert FACES.encode(torch.tensor([1]), torch.tensor([4])).tolist() == [10]


def test_one_column_of_shape_n_1_is_the_column() -> None:
    y, a = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])
    assert torch.equal(BIRDS.encode(y, a[:, None]), BIRDS.encode(y, a))
    assert torch.equal(BIRDS.membership(y, a[:, None]), BIRDS.membership(y, a))
    alone = Groups.overlapping(("civil", "toxic"), ("male",))
    assert torch.equal(alone.membership(y, a), alone.membership(y, a[:, None]))


@pytest.mark.parametrize("a", [[0, -1], [-1, -1]])
def test_a_hidden_attribute_has_no_group(a: list[int]) -> None:
    with pytest.raises(
        MissingAttributesError, match=r"needs the attribute a of every example .* hidden or unknown \(-1\)"
    ):
        BIRDS.encode(torch.tensor([0, 1]), torch.tensor(a))


def test_one_hidden_column_hides_the_crossing() -> None:
    a = torch.tensor([[1, 1], [1, -1], [-1, 2]])
    assert FACES.known(a).tolist() == [True, False, False]
    with pytest.raises(MissingAttributesError, match="A group needs the attribute"):
        FACES.encode(torch.tensor([0, 0, 0]), a)
    assert FACES.membership(torch.tensor([0, 0, 0]), a).sum(dim=1).tolist() == [1, 0, 0]


@pytest.mark.parametrize("groups", [BIRDS, FACES, Groups(("a", "b"))], ids=["simple", "crossed", "none"])
def test_membership_is_the_one_hot_of_the_group(groups: Groups) -> None:
    g = torch.arange(len(groups)).repeat(2)
    y, a = groups.decode(g)
    assert torch.equal(groups.membership(y, a), torch.nn.functional.one_hot(groups.encode(y, a), len(groups)).bool())


def test_membership_leaves_out_the_unknown() -> None:
    member = BIRDS.membership(torch.tensor([0, 1, 1]), torch.tensor([1, -1, 0]))
    assert member.int().tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]


def test_overlapping_membership_by_hand() -> None:
    a = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [-1, -1, -1]])
    member = TALK.membership(torch.tensor([0, 0, 1, 1]), a)
    assert member.int().tolist() == [[1, 0, 1, 0, 0, 0], [0] * 6, [0, 0, 0, 1, 1, 1], [0] * 6]


def test_an_unknown_overlapping_attribute_leaves_the_known_ones() -> None:
    y, a = torch.tensor([0, 1]), torch.tensor([[1, 0, -1], [-1, 1, 1]])
    assert TALK.membership(y, a).int().tolist() == [[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]


@pytest.mark.parametrize(
    "groups", [BIRDS, FACES, TALK, Groups(("a", "b")), Groups.domains(("a", "b"), ("c", "d", "e"))]
)
def test_counts_are_the_sums_of_memberships(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spurless.core.groups.CHUNK_ROWS", 7)
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(2, (60,), generator=draw)
    values = 1 if groups.overlap else len(groups.attributes) - 1
    a = torch.randint(-1, values + 1, (60, 3) if groups.overlap else (60,), generator=draw)
    for kind in (torch.long, torch.int32):
        assert torch.equal(groups.count(y, a.to(kind)), groups.membership(y, a).sum(dim=0))


def test_overlapping_groups_have_no_single_number() -> None:
    with pytest.raises(InputError, match=r"these groups overlap.*Use data.column\(NAME\)"):
        TALK.encode(torch.tensor([0]), torch.tensor([[1, 0, 0]]))


def test_a_column_is_having_it_or_not() -> None:
    column = TALK.column("female")
    assert column.names == ("civil, not female", "civil, female", "toxic, not female", "toxic, female")
    assert not column.overlap


@pytest.mark.parametrize(("groups", "name"), [(TALK, "elderly"), (BIRDS, "land")])
def test_only_an_overlapping_attribute_has_a_column(groups: Groups, name: str) -> None:
    with pytest.raises(InputError, match=f"unknown overlapping attribute '{name}'"):
        groups.column(name)


def test_groups_are_equal_by_their_names_and_can_be_keys() -> None:
    assert Groups(("a",), ("b",)) == Groups(("a",), ("b",)) != Groups(("a",), ("c",))
    assert {Groups(("a",)): 1}[Groups(("a",))] == 1


def test_domains_are_groups_whatever_the_label() -> None:
    groups = Groups.domains(("no", "yes", "maybe"), ("here", "there"))
    y, a = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 1, 0, -1])
    assert len(groups) == 2
    assert groups.names == ("here", "there")
    assert groups.encode(y[:3], a[:3]).tolist() == [1, 1, 0]
    assert groups.membership(y, a).int().tolist() == [[0, 1], [0, 1], [1, 0], [0, 0]]
    with pytest.raises(InputError, match="these groups mix labels, so a group has no label"):
        groups.decode(torch.tensor([0]))
