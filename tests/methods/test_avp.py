"""AVP: which weight falls first by hand, what it reads and what not, on nets of several kinds."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.bench.experiment import Experiment, run_experiment
from spurless.core.groups import Groups
from spurless.data.datasets.gaussians import GaussiansConfig, gaussians
from spurless.data.split import Split, Splits
from spurless.fitting import Fitted, fit
from spurless.methods._prune_loop import Pruned
from spurless.methods.avp import AVP, AVP_CELEBA, AVP_GAUSSIANS, AVP_GAUSSIANS_AUTHORS, AVPConfig
from spurless.methods.base import method_info
from spurless.metrics.variability import variability
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.pruning.masks import named_weight_layers, sparsity
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

CPU = Compute("cpu")
ONE = AVPConfig(candidates=1, probability=1.0, epochs=1, keep="last")
STILL = TrainConfig(batch_size=4, lr=1e-30, momentum=0.0, weight_decay=0.0)
"""a step that moves nothing, so that what is pruned is all that happens"""


def split_of(x: Tensor) -> Split:
    y = torch.arange(len(x)) % 2
    return Split(x, y, torch.zeros_like(y), Groups(("no", "yes"), ("any",)))


def splits_of(x: Tensor) -> Splits:
    return Splits(split_of(x), split_of(x), split_of(x))


# Units as given: mean 2 and variance 1; mean 5 and variance 4; never moves.
X = torch.tensor([[1.0, 3.0, 1.0], [3.0, 7.0, 1.0], [1.0, 7.0, 1.0], [3.0, 3.0, 1.0]])


def two_layers() -> Classifier:
    """Dispersions are 1 / 2, 4 / 5 and 0 in the first layer; behind it h = (x0, x1) has the same."""
    backbone, head = nn.Linear(3, 2, bias=False), nn.Linear(2, 2)
    backbone.weight.data = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.3]])
    head.weight.data = torch.tensor([[0.9, 0.6], [-0.5, -0.25]])
    return Classifier(backbone, head, trained=True)


def pruned(config: AVPConfig, data: Splits | None = None) -> tuple[Tensor, Tensor]:
    """Return the weights of both layers after one pruning."""
    model = AVP(config).fit(two_layers(), data or splits_of(X), make_run(CPU, 0, STILL))
    return model.get_parameter("backbone.weight").detach(), model.get_parameter("head.weight").detach()


def test_the_lowest_of_both_layers_falls_first_by_hand() -> None:
    # paper: 1 * 0.5 and 1 * 0.8 and 0.3 * 0; head: x1' = x1 + 0.3 has 4 / 5.3
    # head: 0.45, 0.453; 0.25, 0.189: the last one is lowest, though 0.3 is nearly as small a weight
    for count, zeros in ((1, [(1, 1)]), (2, [(1, 1), (1, 0)]), (3, [(1, 1), (1, 0), (0, 0)])):
        first, second = pruned(replace(ONE, candidates=count))
        assert {tuple(place) for place in (second == 0).nonzero().tolist()} == set(zeros)
        assert float(first[1, 2]) == pytest.approx(0.3)  # its input never moves: score 0


def test_scores_of_zero_are_passed_over_unless_asked_otherwise() -> None:
    first, second = pruned(replace(ONE, skip_zeros=False))
    assert float(first[1, 2]) == 0.0
    assert bool((second != 0).all())


def test_minmax_does_not_see_the_size_of_a_weight() -> None:
    # std / spread: 1 / 2 and 2 / 4 here; with a value further out, x1 has the lower
    x = torch.cat([X, X, torch.tensor([[2.0, 13.0, 1.0], [2.0, -3.0, 1.0]])])
    first, second = pruned(replace(ONE, reading="minmax", candidates=3), splits_of(x))
    assert bool((second[:, 1] == 0).all())
    assert float(first[1, 1]) == 0.0  # as large as any
    assert bool((second[:, 0] != 0).all())


def test_labels_have_no_part_in_the_score() -> None:
    flipped = split_of(X)
    flipped = replace(flipped, y=1 - flipped.y)
    data = splits_of(X)
    (_, one), (_, other) = pruned(ONE, data), pruned(ONE, Splits(flipped, data.val, data.test))
    assert torch.equal(one == 0, other == 0)


def test_the_whole_train_split_is_read_in_eval_mode() -> None:
    x = torch.randn(700, 3)  # more than one batch of an evaluation
    data = splits_of(x)
    model = Classifier(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)), nn.Linear(4, 2), trained=True)
    scores = variability(model, [x])
    name, place, low = min(
        ((name, each.flatten().argmin(), float(each.min())) for name, each in scores.items()), key=lambda t: t[2]
    )
    assert low > 0
    model = AVP(ONE).fit(model, data, make_run(CPU, 0, STILL))
    assert float(model.get_parameter(name).detach().flatten()[place]) == 0.0
    assert sparsity(model) == pytest.approx(1 / 20)


def pictures(n: int = 24, side: int = 16) -> Splits:
    return splits_of(torch.rand(n, 3, side, side))


class Reader(nn.Module):
    """A small encoder of a few tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.encoder(x)
        return tokens.mean(dim=1)


@pytest.mark.parametrize("name", ["small-cnn", "resnet20", "transformer"])
def test_nets_of_other_kinds_are_pruned_to_the_target(name: str) -> None:
    data = splits_of(torch.randn(24, 5, 8)) if name == "transformer" else pictures()
    model = Classifier(Reader(), nn.Linear(8, 2)) if name == "transformer" else build(name, data)
    config = replace(AVP_CELEBA, epochs=3, start_epoch=1, target_sparsity=0.5, keep="last")
    run = make_run(CPU, 0, TrainConfig(batch_size=12, lr=0.01))
    model = AVP(config).fit(model, data, run)
    assert isinstance(run.explanation, Pruned)
    layers = run.explanation.layers
    assert run.explanation.curve[0] == 0.0
    assert run.explanation.sparsity == sparsity(model) == pytest.approx(0.5, abs=0.01)
    assert max(layers.values()) <= 0.95
    if name == "transformer":
        assert [n for n, share in layers.items() if share == 0 and "out_proj" not in n] == []
        assert all(share == 0 for n, share in layers.items() if "out_proj" in n)  # read, never called
    logits = model(data.test.x)
    assert bool(logits.isfinite().all())


def gaussian_fit(**options: Any) -> Fitted:
    data = gaussians(GaussiansConfig(per_class=30, mislabelled=2, val_per_class=30, test_per_class=30))
    model = build("mlp", data, depth=3, width=16, activation="tanh", bias=True)
    settings = {"epochs": 100, "batch_size": 160, "optimiser": "adam", "lr": 0.03, "weight_decay": 0.0}
    return fit("avp", model, data, train=settings, compute=CPU, **options)


def test_the_record_says_what_was_used_and_found() -> None:
    fitted = gaussian_fit(epochs=40, candidates=16)
    assert fitted.record.supervision == {"train_attributes": False, "val_labels": True, "val_attributes": False}
    assert isinstance(fitted.explanation, Pruned)
    last = fitted.record.history[-1]
    assert last["stage"] == "pruned"
    assert last["sparsity"] == fitted.explanation.sparsity == sparsity(fitted.model) > 0
    assert {"variability", "prune", "total"} <= set(fitted.record.seconds)
    assert fitted.start is not None
    assert sparsity(fitted.start) == 0.0


def test_presets_are_the_papers_and_the_authors() -> None:
    paper, authors, celeba = AVP_GAUSSIANS, AVP_GAUSSIANS_AUTHORS, AVP_CELEBA
    assert (paper.candidates, paper.probability, paper.epochs, paper.reading) == (2, 0.5, 1200, "paper")
    assert (authors.candidates, authors.probability, authors.reading, authors.regrow) == (10, 1.0, "minmax", True)
    assert authors.epochs // authors.epochs_between == 401
    assert (celeba.start_epoch, celeba.epochs) == (10, 50)
    assert method_info(AVP()).start == "trained"
    assert method_info(AVP(AVP_CELEBA)).start == "scratch"
    assert not method_info(AVP(replace(AVP_GAUSSIANS, keep="last"))).val_labels


def test_names_of_the_weights_are_those_of_the_masks() -> None:
    data = pictures()
    model = build("small-cnn", data)
    assert list(variability(model, [data.train.x])) == [name for name, _ in named_weight_layers(model)]


def test_the_validated_sparsity_beats_the_overfitted_net_on_a_seed_that_no_claim_uses() -> None:
    from spurless.bench.claims.avp import BIASED

    short = {"epochs": 400, "candidates": 6}
    cells: dict[str, Experiment] = {
        name: replace(BIASED.experiments[name], method_options={**BIASED.experiments[name].method_options, **short})
        for name in ("no pruning", "avp")
    }
    data = {"biased": True, "per_class": 40, "mislabelled": 2}
    records = {
        name: run_experiment(replace(cell, data_options=data, train={**cell.train, "batch_size": 210}), 100, CPU).record
        for name, cell in cells.items()
    }
    assert BIASED.measure(records) > 0
