"""Learned masks: samples come with the stated probability, gradients by hand, and a settled model is a pruned one."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.models import build, load_weights, save_weights
from spurless.models.classifier import Classifier
from spurless.models.pruning.learned_masks import (
    LearnedMask,
    absolute_sum,
    add_learned_masks,
    expected_kept,
    finalize_masks,
    get_mask_logits,
    has_learned_masks,
    signed_sum,
)
from spurless.models.pruning.masks import get_weight_masks, is_pruned, make_permanent, prune, sparsity

SEEDS = Seeds(0)


def one_weight(w: float = 3.0) -> nn.Sequential:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, w)
    return nn.Sequential(layer)


def set_logits(model: nn.Module, *values: float) -> None:
    with torch.no_grad():
        for logits in get_mask_logits(model).values():
            logits.copy_(torch.tensor(values).view_as(logits))


def scatter_logits(model: nn.Module) -> dict[str, Tensor]:
    """Give every weight a random logit; return the masks that these settle to."""
    generator = SEEDS.generator("logits")
    with torch.no_grad():
        for logits in get_mask_logits(model).values():
            logits.copy_(torch.randn(logits.shape, generator=generator))
    return {name: logits.detach() >= 0 for name, logits in get_mask_logits(model).items()}


def sigmoid(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).sigmoid())


@pytest.mark.parametrize("squashed", [False, True])
@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("theta", [-2.0, 0.0, 1.5])
def test_weights_are_kept_as_often_as_stated(theta: float, tau: float, squashed: bool) -> None:
    n = 200_000
    mask = LearnedMask(torch.empty(n), theta, tau, squashed)
    with SEEDS.seed_global_rng("draw"):
        drawn = mask.sample().detach()
    p = sigmoid(sigmoid(theta)) if squashed else sigmoid(theta)
    assert set(drawn.tolist()) == {0.0, 1.0}  # hard, without rounding
    assert abs(float(drawn.mean()) - p) < 4 * (p * (1 - p) / n) ** 0.5
    torch.testing.assert_close(mask.probability().detach(), torch.full((n,), p))


def test_the_probabilities_at_the_start_are_the_two_known_ones() -> None:
    like = torch.empty(1)
    assert LearnedMask(like, 1.5, 1.0, False).probability().item() == pytest.approx(0.8176, abs=5e-5)
    assert LearnedMask(like, 1.5, 1.0, True).probability().item() == pytest.approx(0.6937, abs=5e-5)
    assert LearnedMask(like, 50.0, 1.0, True).probability().item() == pytest.approx(0.7311, abs=5e-5)  # its limits
    assert LearnedMask(like, -50.0, 1.0, True).probability().item() == pytest.approx(0.5)


@pytest.mark.parametrize("squashed", [False, True])
@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_the_gradient_by_hand(squashed: bool, tau: float) -> None:
    """Loss L = w_eff x with w_eff = w m, so dL/dw_eff = x and dw_eff/dm = w.

    Straight through: dm/dTheta = d sigmoid(z / tau) / dTheta with z = s(Theta) + noise,
    = q (1 - q) / tau * ds/dTheta with q = sigmoid(z / tau);
    ds/dTheta = 1 for the paper, sigmoid(Theta) (1 - sigmoid(Theta)) for the authors.
    It is the same whether the hard sample is 0 or 1.
    """
    theta, w, x = 0.3, 3.0, 5.0
    model = one_weight(w)
    add_learned_masks(model, init=theta, tau=tau, squashed=squashed)
    seen = set()
    for draw in range(12):
        model.zero_grad()
        with SEEDS.seed_global_rng(draw):
            out = model(torch.tensor([[x]]))
        out.sum().backward()
        with SEEDS.seed_global_rng(draw):
            u = torch.rand(1, 1).double().item()
        noise = float(torch.logit(torch.tensor(u, dtype=torch.float64)))
        p = sigmoid(theta)
        z, ds = (p + noise, p * (1 - p)) if squashed else (theta + noise, 1.0)
        q = sigmoid(z / tau)
        (logits,) = get_mask_logits(model).values()
        assert logits.grad is not None
        assert logits.grad.item() == pytest.approx(x * w * q * (1 - q) / tau * ds, rel=1e-4)
        assert out.item() == (x * w if z >= 0 else 0.0)
        seen.add(out.item())
    assert seen == {0.0, x * w}  # both cases were met


def test_noise_without_end_prunes_and_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)  # 0 is drawn once in 17 million times
    mask = LearnedMask(torch.empty(2), 1.5, 1.0, False)
    drawn = mask.sample()
    assert drawn.tolist() == [0.0, 0.0]
    assert torch.autograd.grad(drawn.sum(), mask.logits)[0].tolist() == [0.0, 0.0]


def test_every_forward_draws_anew_and_eval_draws_nothing() -> None:
    model = nn.Sequential(nn.Linear(40, 1, bias=False))
    nn.init.ones_(model.get_parameter("0.weight"))
    add_learned_masks(model, squashed=False)
    x = torch.eye(40)
    with SEEDS.seed_global_rng("two"):
        assert not torch.equal(model(x), model(x))
        state = torch.get_rng_state()
        set_logits(model, *([-0.001] * 10 + [0.0] * 30))
        model.eval()
        assert model(x).flatten().tolist() == [0.0] * 10 + [1.0] * 30  # 0 is kept
        assert torch.equal(torch.get_rng_state(), state)


def test_putting_masks_on_draws_nothing() -> None:
    with SEEDS.seed_global_rng("on"):
        state = torch.get_rng_state()
        model = build("mlp", input_shape=(4,), n_classes=2, width=3)
        prune(model, {"head.weight": torch.rand(2, 3, generator=SEEDS.generator("x")) < 0.5})
        add_learned_masks(model, squashed=False)
        finalize_masks(model)
        assert torch.equal(torch.get_rng_state(), state)


def test_the_penalties_by_hand() -> None:
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 1))
    add_learned_masks(model, squashed=False, leave=["1.weight"])
    set_logits(model, -2.0, 0.0, 1.0)
    assert signed_sum(model).item() == -1.0
    assert absolute_sum(model).item() == 3.0
    assert expected_kept(model).item() == pytest.approx(0.1192 + 0.5 + 0.7311, abs=1e-4)
    (logits,) = get_mask_logits(model).values()
    assert torch.autograd.grad(signed_sum(model), logits)[0].tolist() == [[1.0, 1.0, 1.0]]
    assert torch.autograd.grad(absolute_sum(model), logits)[0].tolist() == [[-1.0, 0.0, 1.0]]


@pytest.mark.parametrize(("steps", "pruned"), [(1500, 0.0), (2000, 1.0)])
def test_under_the_paper_s_penalty_alone_the_last_step_decides_whether_all_or_none_is_pruned(
    steps: int, pruned: float
) -> None:
    model = nn.Sequential(nn.Linear(3, 1, bias=False))
    add_learned_masks(model, squashed=False)
    (logits,) = get_mask_logits(model).values()
    optimiser, lowest = torch.optim.Adam([logits], lr=1e-2), 0.0
    for _ in range(steps):
        (logits.grad,) = torch.autograd.grad(1e-8 * absolute_sum(model), logits)
        optimiser.step()
        lowest = min(lowest, float(logits.detach().min()))
    assert lowest == pytest.approx(-0.0172, abs=1e-3)  # so that 0 is no place of rest
    finalize_masks(model)
    assert sparsity(model) == pruned


def test_the_expected_number_of_the_squashed_reading() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    add_learned_masks(model, squashed=True)
    assert expected_kept(model).item() == pytest.approx(28 * 0.69372, abs=1e-3)  # 20 + 8 weights, no biases


def test_only_logits_are_trained_and_settling_gives_back_what_was() -> None:
    model = build("small-cnn", input_shape=(1, 16, 16), n_classes=2, width=2, hidden=4)
    model.get_parameter("backbone.norm1.bias").requires_grad_(False)  # frozen by the caller
    model.get_parameter("head.weight").requires_grad_(False)
    before = {name: (p.clone(), p.requires_grad, p) for name, p in model.named_parameters()}
    add_learned_masks(model, squashed=False)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 6
    assert all(name.endswith(".logits") for name in trained)
    finalize_masks(model)
    make_permanent(model)
    after = dict(model.named_parameters())
    assert sorted(after) == sorted(before)
    for name, (value, trainable, same) in before.items():
        assert after[name] is same, name  # an optimiser made before still holds it
        assert after[name].requires_grad is trainable, name
        assert torch.equal(after[name], value), name  # all logits are 1.5, so nothing is pruned


def test_the_harmful_weight_goes_and_the_useful_one_stays() -> None:
    layer = nn.Linear(2, 1, bias=False)
    nn.init.ones_(layer.weight)
    model = nn.Sequential(layer)  # x0 + x1, and the truth is x0
    add_learned_masks(model, squashed=False)
    x = torch.randn(256, 2, generator=SEEDS.generator("x"))
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with SEEDS.seed_global_rng("steps"):
        for _ in range(150):
            optimiser.zero_grad()
            (model(x)[:, 0] - x[:, 0]).square().mean().backward()
            optimiser.step()
    finalize_masks(model)
    assert get_weight_masks(model)["0.weight"].tolist() == [[True, False]]
    assert torch.equal(model(x)[:, 0], x[:, 0])


def test_what_is_pruned_stays_pruned() -> None:
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    nn.init.ones_(model.get_parameter("0.weight"))
    prune(model, {"0.weight": torch.tensor([[True, False, True, False]])})
    add_learned_masks(model, squashed=False)
    set_logits(model, 9.0, 9.0, -1.0, -1.0)
    assert signed_sum(model).item() == 8.0  # 9 - 1
    assert absolute_sum(model).item() == 10.0
    assert expected_kept(model).item() == pytest.approx(sigmoid(9.0) + sigmoid(-1.0))
    with SEEDS.seed_global_rng("draw"):
        for _ in range(20):
            assert model(torch.eye(4)).flatten()[[1, 3]].tolist() == [0.0, 0.0]
    model(torch.eye(4)).sum().backward()
    (logits,) = get_mask_logits(model).values()
    assert logits.grad is not None
    assert (logits.grad != 0).tolist() == [[True, False, True, False]]
    with pytest.raises(InputError, match=r"another parametrization besides its mask. Call .*finalize_masks first"):
        make_permanent(model)
    finalize_masks(model)
    assert get_weight_masks(model)["0.weight"].tolist() == [[True, False, False, False]]
    make_permanent(model)
    assert model.get_parameter("0.weight").tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("small-cnn", (3, 16, 16)), ("resnet20", (3, 8, 8)), ("torchvision:resnet18", (3, 32, 32))],
)
def test_a_settled_model_is_the_masked_one(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    model = build(name, input_shape=shape, n_classes=2)
    x = torch.randn(3, *shape, generator=SEEDS.generator("x"))
    by_hand = copy.deepcopy(model).eval()
    add_learned_masks(model, squashed=True)
    assert set(get_mask_logits(model)) == set(get_weight_masks(by_hand))
    with SEEDS.seed_global_rng("forward"):
        model(x).square().sum().backward()  # every logit is reached in one step
    assert all(logits.grad is not None for logits in get_mask_logits(model).values())
    masks = scatter_logits(model)
    for there, here in zip(model.buffers(), by_hand.buffers(), strict=True):  # the forward moved the running means
        here.copy_(there)
    prune(by_hand, masks)
    model.eval()
    unsettled = model(x)
    finalize_masks(model)
    assert not has_learned_masks(model)
    assert torch.equal(model(x), unsettled)
    assert torch.equal(model(x), by_hand(x))
    make_permanent(model)
    assert sparsity(model) == pytest.approx(0.5, abs=0.05)
    save_weights(tmp_path / "w.safetensors", model)
    fresh = build(name, input_shape=shape, n_classes=2, seed=1).eval()
    load_weights(tmp_path / "w.safetensors", fresh)
    assert torch.equal(fresh(x), unsettled)


def test_training_after_settling_keeps_the_zeros() -> None:
    model = build("mlp", input_shape=(3,), n_classes=2, width=4)
    add_learned_masks(model, squashed=False)
    masks = scatter_logits(model)
    finalize_masks(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    before = sparsity(model)
    for _ in range(3):
        optimiser.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        optimiser.step()
    assert sparsity(model) == before == sum(int((~m).sum()) for m in masks.values()) / 36  # 12 + 16 + 8


def test_a_transformer_keeps_its_attention() -> None:
    with SEEDS.seed_global_rng("init"):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x, by_hand = torch.randn(2, 5, 8, generator=SEEDS.generator("x")), copy.deepcopy(layer).eval()
    add_learned_masks(layer, squashed=False)
    assert set(get_mask_logits(layer)) == {"linear1.weight", "linear2.weight"}
    with SEEDS.seed_global_rng("forward"):
        layer(x).square().sum().backward()
    masks = scatter_logits(layer)
    prune(by_hand, masks)
    with torch.no_grad():  # in eval mode without gradients torch takes a path that reads weights and calls no layer
        torch.testing.assert_close(layer.eval()(x), by_hand(x))
        finalize_masks(layer)
        torch.testing.assert_close(layer(x), by_hand(x))


def test_copies_are_their_own() -> None:
    model = build("mlp", input_shape=(3,), n_classes=2, width=4).eval()
    add_learned_masks(model, squashed=False)
    masks, x = scatter_logits(model), torch.ones(2, 3)
    before, twin = model(x), copy.deepcopy(model)
    finalize_masks(twin)
    make_permanent(twin)
    assert torch.equal(twin(x), before)
    assert all(p.requires_grad for p in twin.parameters())
    assert (has_learned_masks(model), is_pruned(model), has_learned_masks(twin)) == (True, False, False)
    assert torch.equal(model(x), before)
    finalize_masks(model)
    assert all(torch.equal(get_weight_masks(model)[name], mask) for name, mask in masks.items())


def test_state_dicts_carry_the_logits() -> None:
    model, other = one_weight(), one_weight()
    for each in (model, other):
        add_learned_masks(each, squashed=False)
    set_logits(model, -4.0)
    other.load_state_dict(model.state_dict())
    assert get_mask_logits(other)["0.weight"].item() == -4.0


def test_a_step_looks_at_no_value() -> None:
    with FakeTensorMode():  # tensors without values: any look at one raises
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        prune(model, {"0.weight": torch.ones(3, 4, dtype=torch.bool)})
        add_learned_masks(model, squashed=True)
        loss = model(torch.ones(2, 4)).sum() + signed_sum(model) + absolute_sum(model) + expected_kept(model)
        loss.backward()
        assert get_mask_logits(model)["0.weight"].grad is not None


def test_half_precision_weights_keep_their_kind() -> None:
    model = one_weight().to(torch.bfloat16)
    add_learned_masks(model, squashed=False)
    assert model(torch.ones(1, 1, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert get_mask_logits(model)["0.weight"].dtype == torch.float32  # steps of 1e-2 need the digits


def test_a_weight_can_be_reset_beneath_its_mask() -> None:
    model = one_weight().eval()
    add_learned_masks(model, squashed=False)
    layer: Any = model.get_submodule("0")
    layer.weight = torch.full((1, 1), 7.0)
    assert model(torch.ones(1, 1)).item() == 7.0


def test_mistakes_are_named_before_anything_changes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"is called '0.wait'. Did you mean '0.weight'"):
        add_learned_masks(model, squashed=False, leave=["0.wait"])
    with pytest.raises(InputError, match=r"expected a finite init and tau > 0, got 1.5 and 0"):
        add_learned_masks(model, tau=0, squashed=False)
    with pytest.raises(InputError, match=r"no weights to mask"):
        add_learned_masks(nn.ReLU(), squashed=False)
    with pytest.raises(InputError, match=r"has no learned masks. Call add_learned_masks"):
        signed_sum(model)
    model.get_submodule("1").weight = model.get_parameter("0.weight")
    with pytest.raises(InputError, match=r"shared by several layers"):
        add_learned_masks(model, squashed=False)
    assert not has_learned_masks(model)
    assert all(p.requires_grad for p in model.parameters())


def test_masks_are_learned_once_at_a_time() -> None:
    model = one_weight()
    add_learned_masks(model, squashed=False)
    with pytest.raises(InputError, match=r"already has a learned mask. Call finalize_masks"):
        add_learned_masks(model, squashed=False)
    with pytest.raises(InputError, match=r"already parametrized. Call finalize_masks"):
        prune(model, {"0.weight": torch.ones(1, 1, dtype=torch.bool)})
    finalize_masks(model)
    add_learned_masks(model, squashed=False)  # on top of the settled one
    assert has_learned_masks(model)


def test_settling_nothing_changes_nothing() -> None:
    model = Classifier(nn.Flatten(), nn.Linear(2, 2))
    finalize_masks(model)
    assert not is_pruned(model)
