"""Random and magnitude pruning: who falls, by hand and by chance."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from spurless.core.groups import Groups
from spurless.data.split import Split, Splits
from spurless.methods._prune_loop import PruningConfig, Score
from spurless.methods.avp import AVP_CELEBA
from spurless.methods.prune_baselines import PRUNE_CELEBA, MagnitudePrune, RandomPrune
from spurless.models.classifier import Classifier
from spurless.models.pruning.masks import named_weight_layers, sparsity
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, Run, make_run

STILL = TrainConfig(batch_size=4, lr=1e-30, momentum=0.0, weight_decay=0.0)
X = torch.tensor([[1.0, 3.0], [3.0, 7.0], [1.0, 7.0], [3.0, 3.0]])


def data() -> Splits:
    y = torch.tensor([0, 1, 0, 1])
    split = Split(X, y, torch.zeros_like(y), Groups(("no", "yes"), ("any",)))
    return Splits(split, split, split)


def a_net() -> Classifier:
    backbone, head = nn.Linear(2, 2), nn.Linear(2, 2)
    backbone.weight.data = torch.tensor([[1.0, -0.1], [0.4, 2.0]])
    head.weight.data = torch.tensor([[-0.3, 0.2], [5.0, -0.15]])
    return Classifier(backbone, head, trained=True)


def a_run(seed: int = 0) -> Run:
    return make_run(Compute("cpu"), seed, STILL)


def zeros(model: nn.Module) -> list[Tensor]:
    return [layer.weight == 0 for _, layer in named_weight_layers(model)]


def test_the_smallest_of_both_layers_fall_first() -> None:
    config = PruningConfig(candidates=3, probability=1.0, epochs=1, keep="last")
    first, second = zeros(MagnitudePrune(config).fit(a_net(), data(), a_run()))
    assert first.tolist() == [[False, True], [False, False]]  # 0.1
    assert second.tolist() == [[False, True], [False, True]]  # 0.2 and 0.15


def test_every_weight_is_as_likely_to_fall() -> None:
    config = PruningConfig(candidates=2, probability=1.0, epochs=1, keep="last")
    count: Counter[int] = Counter()
    n = 200
    for seed in range(n):
        model = RandomPrune(config).fit(a_net(), data(), a_run(seed))
        flat = torch.cat([each.flatten() for each in zeros(model)])
        assert int(flat.sum()) == 2
        count.update(flat.nonzero().flatten().tolist())
    expected, deviation = n * 2 / 8, (n * 0.25 * 0.75) ** 0.5
    assert all(abs(count[k] - expected) < 4 * deviation for k in range(8))


def test_chance_chooses_among_what_is_left() -> None:
    config = PruningConfig(candidates=2, probability=1.0, epochs=4, keep="last")
    run = a_run()
    model = RandomPrune(config).fit(a_net(), data(), run)
    assert sparsity(model) == 1.0  # never the same twice


def test_the_die_is_thrown_anew_before_every_pruning(monkeypatch: pytest.MonkeyPatch) -> None:
    caught: list[Score] = []

    def keep_the_score(model: Classifier, _data: Splits, _run: Run, _config: PruningConfig, score: Score) -> Classifier:
        caught.append(score)
        return model

    monkeypatch.setattr("spurless.methods.prune_baselines.prune_and_train", keep_the_score)
    model = RandomPrune().fit(a_net(), data(), a_run())
    first, again, later = (caught[0](model, epoch)["head.weight"] for epoch in (0, 0, 1))
    assert torch.equal(first, again)  # as a resumed run needs it
    assert not torch.equal(first, later)


@pytest.mark.parametrize("method", [RandomPrune, MagnitudePrune])
def test_probability_zero_trains_on_and_prunes_nothing(method: type[RandomPrune] | type[MagnitudePrune]) -> None:
    model = method(PruningConfig(probability=0.0, epochs=5, keep="last")).fit(a_net(), data(), a_run())
    assert sparsity(model) == 0.0


def test_the_twins_have_the_settings_of_avp() -> None:
    for name, value in vars(PRUNE_CELEBA).items():
        assert getattr(AVP_CELEBA, name) == value
    assert set(RandomPrune.presets) == set(MagnitudePrune.presets) == {"gaussians", "celeba"}
