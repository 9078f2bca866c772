"""Seeds: one number, one stream per purpose, and the global generator left as it was."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds


def draw(generator: torch.Generator) -> list[float]:
    return torch.rand(4, generator=generator).tolist()


def test_the_same_purpose_gives_the_same_stream_and_another_gives_another() -> None:
    seeds = Seeds(3)
    assert draw(seeds.generator("order", 1)) == draw(seeds.generator("order", 1))
    streams = [seeds.generator(*purpose) for purpose in (("order", 1), ("order", 2), ("augment", 1), ())]
    assert len({tuple(draw(stream)) for stream in streams}) == 4
    assert draw(Seeds(4).generator("order", 1)) != draw(seeds.generator("order", 1))


def test_words_do_not_run_together() -> None:
    seeds = Seeds(0)
    assert len({seeds.number("ab", "c"), seeds.number("a", "bc"), seeds.number("abc"), seeds.number("a, bc")}) == 4
    assert Seeds(1).number("2") != Seeds(12).number()


def test_the_number_is_the_same_in_every_process_and_fits_in_63_bits() -> None:
    # blake2b of "(0, 'order')", 8 bytes big-endian, halved; Python's own hash() changes from process to process
    assert Seeds(0).number("order") == 5541719180202367972
    assert all(0 <= Seeds(i).number("x") < 2**63 for i in range(200))


def test_a_whole_number_is_the_same_seed_whoever_made_it() -> None:
    for seed in (np.int64(3), torch.tensor(3)):
        assert (Seeds(seed), Seeds(seed).number("x")) == (Seeds(3), Seeds(3).number("x"))  # type: ignore[arg-type]
    for wrong in ("3", 3.0, None):
        with pytest.raises(InputError, match=r"the seed must be an integer \(got "):
            Seeds(wrong)  # type: ignore[arg-type]


def test_a_stream_is_not_moved_by_others() -> None:
    seeds = Seeds(0)
    alone = draw(seeds.generator("order"))
    stream, other = seeds.generator("order"), seeds.generator("augment")
    mixed = []
    for _ in range(4):
        mixed.append(float(torch.rand(1, generator=stream)))
        torch.rand(7, generator=other)
        torch.rand(3)
    assert mixed == pytest.approx(alone, abs=0)


def test_a_child_has_streams_of_its_own() -> None:
    seeds = Seeds(0)
    assert seeds.child("stage", 1) == seeds.child("stage", 1)
    assert len({s.number("order") for s in (seeds, seeds.child("stage", 1), seeds.child("stage", 2))}) == 3


def test_borrowing_puts_the_global_generator_back() -> None:
    before = torch.get_rng_state()
    with Seeds(0).seed_global_rng("init"):
        torch.rand(100)
    assert torch.equal(torch.get_rng_state(), before)


def test_borrowing_puts_it_back_when_the_body_raises() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), Seeds(0).seed_global_rng("init"):
        torch.rand(2, 3) @ torch.rand(2, 3)
    assert torch.equal(torch.get_rng_state(), before)


def weights(seed: int, *purpose: object) -> Tensor:
    with Seeds(seed).seed_global_rng(*purpose):
        return nn.Linear(3, 2).weight.detach().clone()


def test_the_same_purpose_gives_the_same_weights_whatever_was_drawn_before() -> None:
    first = weights(0, "init")
    torch.rand(5)
    assert torch.equal(weights(0, "init"), first)
    assert not torch.equal(weights(0, "other"), first)
    assert not torch.equal(weights(1, "init"), first)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_borrowing_a_gpu_puts_its_generator_back(name: str) -> None:
    device = torch.device(name)
    before = torch.cuda.get_rng_state(device)
    drawn = []
    for _ in range(2):
        with Seeds(0).seed_global_rng("dropout", device=device):
            drawn.append(torch.rand(4, device=device))
    assert torch.equal(*drawn)
    assert torch.equal(torch.cuda.get_rng_state(device), before)
