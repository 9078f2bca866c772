"""The timm zoo."""

import sys

import pytest
import torch

from spurless.core.errors import BadInput, MissingExtra, UnknownName
from spurless.models import build


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 96, 64)])
def test_it_adapts_to_channels_size_and_classes(name: str, shape: tuple[int, int, int]) -> None:
    pytest.importorskip("timm")
    model, x = build(f"timm:{name}", input_shape=shape, n_classes=5).eval(), torch.randn(2, *shape)
    assert (model(x).shape, model.n_classes, model.trained) == ((2, 5), 5, False)
    assert torch.equal(model.unwrap()(x), model(x))


def test_two_heads_are_refused() -> None:
    pytest.importorskip("timm")
    with pytest.raises(BadInput, match="timm:deit_tiny_distilled_patch16_224 has no single linear head"):
        build("timm:deit_tiny_distilled_patch16_224", input_shape=(3, 32, 32), n_classes=5)


def test_a_typo_is_answered_with_the_nearest_names() -> None:
    pytest.importorskip("timm")
    with pytest.raises(UnknownName, match=r"is called 'test_resnets'. Did you mean 'test_resnet'") as caught:
        build("timm:test_resnets", input_shape=(3, 32, 32), n_classes=5)
    assert len(str(caught.value)) < 400  # not all of the thousand


def test_without_timm_the_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"The model timm:test_vit needs .* pip install 'spurless\[timm\]'"):
        build("timm:test_vit", input_shape=(3, 32, 32), n_classes=5)
