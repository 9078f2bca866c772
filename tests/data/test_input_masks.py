"""Hidden: one bit per pixel, the images stay as they were, and batches come masked on every path."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.input_masks import InputMask, SoftInputMask, join_masks
from spurless.data.loader import Loader, sequential_order, shuffled_order
from spurless.data.split import Split

GROUPS = Groups(("no", "yes"))


def masks(n: int = 5, height: int = 3, width: int = 7) -> Tensor:
    return torch.rand(n, height, width) < 0.4


def images(n: int = 5, height: int = 3, width: int = 7) -> Tensor:
    return torch.randint(1, 256, (n, 3, height, width), dtype=torch.uint8)


def split(x: Tensor, hidden: InputMask | SoftInputMask) -> Split:
    y = torch.arange(len(x)) % 2
    return Split(x, y, torch.full_like(y, -1), GROUPS, hidden=hidden)


def test_what_is_packed_comes_back_bit_by_bit() -> None:
    given = masks()
    hidden = InputMask.of(given)
    assert hidden.bits.shape == (5, 3)  # 21 pixels in three bytes
    assert torch.equal(hidden.masks(torch.arange(5)), given)
    assert torch.equal(hidden.masks(torch.tensor([4, 0])), given[[4, 0]])
    assert hidden.fraction == pytest.approx(float(given.double().mean()))
    tokens = torch.rand(4, 11) < 0.5
    assert torch.equal(InputMask.of(tokens).masks(torch.arange(4)), tokens)


def test_a_hidden_pixel_has_the_value_and_others_are_untouched() -> None:
    given, x = masks(), images()
    out = InputMask.of(given, (10.0, 20.4, 30.6)).apply(x, torch.arange(5))
    for channel, value in enumerate((10, 20, 31)):
        assert (out[:, channel][given] == value).all()  # type: ignore[index]
        assert torch.equal(out[:, channel][~given], x[:, channel][~given])  # type: ignore[index]
    assert torch.equal(InputMask.of(given).apply(x.float(), torch.arange(5)) == 0, given[:, None].expand(-1, 3, -1, -1))  # type: ignore[arg-type]


def test_a_hidden_token_is_not_attended_to() -> None:
    x = {"input_ids": torch.ones(1, 4, dtype=torch.int32), "attention_mask": torch.tensor([[1, 1, 1, 0]])}
    out = InputMask.of(torch.tensor([[False, True, False, False]])).apply(x, torch.tensor([0]))
    assert isinstance(out, dict)
    assert out["attention_mask"].tolist() == [[1, 0, 1, 0]]
    assert x["attention_mask"].tolist() == [[1, 1, 1, 0]]


def test_a_hidden_feature_of_a_row_has_the_value() -> None:
    out = InputMask.of(torch.tensor([[False, True], [True, False]]), (5.0,)).apply(torch.ones(2, 2), torch.arange(2))
    assert out.tolist() == [[1, 5], [5, 1]]  # type: ignore[union-attr]


def test_masks_join_where_they_are_of_the_same_examples() -> None:
    one, other = masks(), masks()
    assert torch.equal((InputMask.of(one) | InputMask.of(other)).masks(torch.arange(5)), one | other)
    with pytest.raises(InputError, match="masks of different shapes cannot be combined"):
        InputMask.of(one) | InputMask.of(masks(height=4))


def test_what_is_faded_twice_is_fainter_than_either() -> None:
    one, other = (
        SoftInputMask(torch.tensor([[heat]], dtype=torch.uint8)) for heat in ([0, 51, 102, 255], [102, 0, 102, 51])
    )
    both = join_masks(one, other)
    assert isinstance(both, SoftInputMask)
    assert both.heat.flatten().tolist() == [102, 51, 163, 255]  # 1 - 0.6 * 0.6 is 0.64 of 255
    with pytest.raises(InputError, match="masks of different shapes cannot be combined"):
        one | SoftInputMask(torch.zeros(1, 2, 2, dtype=torch.uint8))
    assert join_masks(None, one) is join_masks(InputMask.of(masks()), one) is one


@pytest.mark.parametrize("kind", ["hidden", "faded"])
def test_batches_come_masked_resident_and_streamed_and_in_any_order(kind: str) -> None:
    x, given = images(20), masks(20)
    hidden = InputMask.of(given) if kind == "hidden" else SoftInputMask(given.to(torch.uint8) * 255)
    expected = torch.where(given[:, None], 0, x).float() / 255

    class Rows:
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, i: int) -> Tensor:
            return x[i]

        def fingerprint(self) -> str:
            return "rows"

    resident = split(x, hidden)
    for part in (resident, replace(resident, x=Rows())):
        for batch in Loader(part, shuffled_order(20, Seeds(0)), 8).batches(3):
            torch.testing.assert_close(batch.x, expected[batch.index])
    chosen = resident.select(torch.tensor([7, 3]))
    (batch,) = Loader(chosen, sequential_order(2), 4).batches()
    torch.testing.assert_close(batch.x, expected[[7, 3]])
    assert resident.fingerprint() != replace(resident, hidden=None).fingerprint()
    assert torch.equal(resident.x, x)  # type: ignore[arg-type]


def test_a_faded_pixel_keeps_the_rest_of_itself() -> None:
    x = torch.full((1, 1, 1, 3), 200, dtype=torch.uint8)
    faded = SoftInputMask(torch.tensor([[[0, 51, 255]]], dtype=torch.uint8), (100.0,))
    assert faded.apply(x, torch.tensor([0])).flatten().tolist() == [200, 180, 100]  # type: ignore[union-attr]
    assert faded.fraction == pytest.approx(0.4)
    with pytest.raises(InputError, match="tokens cannot be partly hidden"):
        faded.apply({"attention_mask": x}, torch.tensor([0]))
