"""Maps of a whole split: in order, whatever the batches, the storage and the way the data are read."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, UnknownNameError
from spurless.core.groups import Groups
from spurless.core.modules import Input
from spurless.core.progress import progress_to
from spurless.data.split import Split
from spurless.explain.attribution import compute_attribution_map
from spurless.explain.cam import xgradcam
from spurless.explain.maps import EXPLAINERS, compute_heat_maps, iterate_heat_maps
from spurless.explain.target_layer import NoFeatureMapError
from spurless.models import build
from spurless.models.classifier import Classifier

N = 11


def images(n: int = N) -> Split:
    x = torch.randint(0, 256, (n, 1, 28, 28), dtype=torch.uint8)
    return Split(x, torch.arange(n) % 2, torch.full((n,), -1), Groups(("a", "b")))


def rows() -> Split:
    return Split(torch.randn(N, 5), torch.arange(N) % 2, torch.full((N,), -1), Groups(("a", "b")))


def words() -> Split:
    ids = torch.randint(3, 30, (N, 6))
    x = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Split(x, torch.arange(N) % 2, torch.full((N,), -1), Groups(("a", "b")))


@pytest.fixture
def model(warm: Classifier) -> Classifier:
    return warm


def test_maps_come_in_order_whatever_the_batch_size(model: Classifier) -> None:
    split = images()
    assert isinstance(split.x, Tensor)
    expected = xgradcam(model, split.x.float() / 255)
    parts = list(iterate_heat_maps(model, split, batch_size=4))
    assert [len(part) for part in parts] == [4, 4, 3]
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(compute_heat_maps(model, split, batch_size=3), expected, rtol=0, atol=1e-5)
    assert all(m.training for m in model.modules())


def test_a_streamed_split_gives_the_same_maps(model: Classifier) -> None:
    split = images()
    assert isinstance(split.x, Tensor)

    class Stored:
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, i: int) -> Tensor:
            return self.x[i]

        def fingerprint(self) -> str:
            return ""

    streamed = Split(Stored(split.x), split.y, split.a, split.groups)
    torch.testing.assert_close(
        compute_heat_maps(model, streamed, batch_size=4), compute_heat_maps(model, split, batch_size=4)
    )


def test_only_what_is_asked_for_is_drawn(model: Classifier) -> None:
    drawn: list[int] = []

    def own(_: Classifier, x: Tensor) -> Tensor:
        drawn.append(len(x))
        return x[:, 0]

    stream = iterate_heat_maps(model, images(), how=own, batch_size=4)
    assert drawn == []
    next(stream)
    stream.close()
    assert drawn == [4]


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 0.0), (torch.float16, 2**-11), (torch.uint8, 0.5 / 255)])
def test_maps_can_be_kept_small(model: Classifier, dtype: torch.dtype, step: float) -> None:
    split = images()
    exact, kept = compute_heat_maps(model, split), compute_heat_maps(model, split, dtype=dtype)
    assert kept.dtype == dtype
    back = kept.float() / 255 if dtype == torch.uint8 else kept.float()
    assert (back - exact).abs().max() <= step + 1e-6
    assert kept.amax() == (255 if dtype == torch.uint8 else pytest.approx(1.0))


def test_what_is_kept_must_fit(model: Classifier) -> None:
    with pytest.raises(
        InputError, match=r"cannot be stored with this dtype \(expected float32, float16, uint8, got int64"
    ):
        compute_heat_maps(model, images(), dtype=torch.int64)
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        compute_heat_maps(model, images(), how=lambda _model, x: 2 * x[:, 0], dtype=torch.uint8)


@pytest.mark.parametrize("how", list(EXPLAINERS))
def test_every_explainer_draws_from_0_to_1(model: Classifier, how: str) -> None:
    found = compute_heat_maps(model, images(3), how=how, batch_size=2)
    assert found.shape == (3, 28, 28)
    assert found.isfinite().all()
    assert found.min() == 0
    assert (found.amax(dim=(1, 2)) > 0.99).all()
    assert found.max() <= 1


def test_a_name_is_its_function(model: Classifier) -> None:
    split = images(3)
    x = split.example(3)
    assert isinstance(x, Tensor)
    for how, layer in (("xgradcam", "relu1"), ("gradcam", "relu1")):
        expected = EXPLAINERS[how].compute(model, x, layer="relu1")
        torch.testing.assert_close(compute_heat_maps(model, split, how=how, layer=layer), expected)
    expected = compute_attribution_map(model, x, how="input-gradient")
    torch.testing.assert_close(compute_heat_maps(model, split, how="input-gradient"), expected)
    assert not torch.equal(compute_heat_maps(model, split, layer="relu1"), compute_heat_maps(model, split))


def test_the_layer_is_looked_for_once(model: Classifier) -> None:
    runs: list[int] = []
    model.backbone.register_forward_pre_hook(lambda _module, inputs: runs.append(len(inputs[0])))
    list(iterate_heat_maps(model, images(), batch_size=4))
    assert runs == [2, 4, 4, 3]  # one look at two copies of the first image, then every image once


def test_auto_is_xgradcam_where_there_is_a_map_and_gradient_x_input_elsewhere(model: Classifier) -> None:
    split = images(3)
    assert torch.equal(compute_heat_maps(model, split, how="auto"), compute_heat_maps(model, split))
    assert not torch.equal(compute_heat_maps(model, split, how="auto", layer="relu1"), compute_heat_maps(model, split))
    flat = build("mlp", input_shape=(1, 28, 28), n_classes=2)
    with pytest.raises(NoFeatureMapError):
        compute_heat_maps(flat, split)
    found = compute_heat_maps(flat, split, how="auto")
    assert torch.equal(found, compute_heat_maps(flat, split, how="gradient-x-input"))
    assert found.shape == (3, 28, 28)
    assert compute_heat_maps(build("mlp", input_shape=(5,), n_classes=2), rows(), how="auto").shape == (N, 5)
    text = compute_heat_maps(
        build("token-mean", input_shape=(6,), n_classes=2, vocabulary=32), words(), how="auto", batch_size=4
    )
    assert text.shape == (N, 6)
    assert text[:, [0, 5]].eq(0).all()  # the ends are marks


def test_any_module_and_any_function_plug_in() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    assert compute_heat_maps(net, images()).shape == (N, 28, 28)

    def brightness(_: Classifier, x: Input) -> Tensor:
        assert isinstance(x, Tensor)
        return x[:, 0]

    split = images()
    assert isinstance(split.x, Tensor)
    torch.testing.assert_close(compute_heat_maps(net, split, how=brightness), split.x[:, 0].float() / 255)


def test_progress_is_told(model: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Iterator[float] = iter(range(0, 10**6, 10))
    monkeypatch.setattr("spurless.core.progress.time.monotonic", lambda: float(next(clock)))
    heard: list[tuple[str, int, int, str]] = []
    with progress_to(lambda *told: heard.append(told)):
        compute_heat_maps(model, images(), how=lambda _model, x: x[:, 0], batch_size=4)
    assert heard == [("heat maps", done, N, "") for done in (4, 8, N)]


def test_what_will_not_do_is_said_before_the_first_batch(model: Classifier) -> None:
    with pytest.raises(UnknownNameError, match=r"No explainer is called 'xgrad-cam'. Did you mean 'xgradcam'"):
        iterate_heat_maps(model, images(), how="xgrad-cam")
    with pytest.raises(
        InputError, match=r"input-gradient does not use a layer. Leave layer out, or use one of: xgradcam, gradcam"
    ):
        iterate_heat_maps(model, images(), how="input-gradient", layer="relu2")
    with pytest.raises(InputError, match="the split is empty"):
        iterate_heat_maps(model, images(0))
    with pytest.raises(InputError, match="the batch size must be at least 1"):
        iterate_heat_maps(model, images(), batch_size=0)


def test_a_function_that_returns_no_maps_is_told(model: Classifier) -> None:
    with pytest.raises(InputError, match=r"one map per example \(expected a tensor of 4, got \(28, 28\)"):
        list(iterate_heat_maps(model, images(), how=lambda _model, x: x[0, 0], batch_size=4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_model_is_moved_and_given_back(model: Classifier) -> None:
    split = images()
    assert all(part.is_cuda for part in iterate_heat_maps(model, split, device="cuda", batch_size=4))
    assert not any(p.is_cuda for p in model.parameters())
    torch.testing.assert_close(
        compute_heat_maps(model, split, device="cuda"), compute_heat_maps(model, split), rtol=0, atol=1e-3
    )


def test_heat_that_is_no_number_is_refused_by_the_example() -> None:
    def broken(_: Classifier, x: Tensor) -> Tensor:
        heat = torch.zeros(len(x), 28, 28)
        heat[-1, 3, 3] = torch.nan
        return heat

    with pytest.raises(InputError, match=r"the heat map of example 3 is not finite\. Check the input of example 3"):
        compute_heat_maps(build("small-cnn", input_shape=(1, 28, 28), n_classes=2), images(), how=broken, batch_size=4)


def test_an_unknown_option_is_refused_by_its_name(model: Classifier) -> None:
    with pytest.raises(InputError, match=r"no option 'depth' .expected .*how"):
        compute_heat_maps(model, images(), depth=3)
