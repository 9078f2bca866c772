"""Wrapping: the same logits as the user's module, for many kinds of module, none of which is changed."""

import copy
import warnings
from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest
import torch
import torchvision.models as tv
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap


class Custom(nn.Module):
    """Adds its head first, and names it oddly."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Linear(6, 3)
        self.body = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self.body(x).tanh())  # type: ignore[no-any-return]  # a module returns Any


def vgg() -> nn.Module:
    """Build VGG11 with narrow linear layers, which are most of its half a gigabyte."""
    with torch.device("meta"):
        net = tv.vgg11(init_weights=False)
    net.features = tv.vgg.make_layers(tv.vgg.cfgs["A"], batch_norm=False)
    net.classifier[0], net.classifier[3], net.classifier[6] = nn.Linear(25088, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    return net  # type: ignore[no-any-return]  # torchvision is untyped


def vit() -> nn.Module:
    return tv.VisionTransformer(16, 8, 1, 2, 16, 16, num_classes=3)  # type: ignore[no-any-return]  # torchvision is untyped


def swin() -> nn.Module:
    return tv.SwinTransformer([4, 4], 24, [1, 1], [2, 2], [2, 2], num_classes=3)  # type: ignore[no-any-return]  # as above


IMAGE_NETS: dict[str, tuple[Callable[[], nn.Module], int, str]] = {
    "resnet18": (lambda: tv.resnet18(num_classes=3), 32, "fc"),
    "vgg11": (vgg, 32, "classifier.6"),
    "densenet121": (lambda: tv.densenet121(num_classes=3), 32, "classifier"),
    "vit": (vit, 16, "heads.head"),
    "swin": (swin, 32, "head"),
    "mobilenet_v3_small": (lambda: tv.mobilenet_v3_small(num_classes=3), 32, "classifier.3"),
    "googlenet": (lambda: tv.googlenet(num_classes=3, init_weights=False), 64, "fc"),
    "shufflenet": (lambda: tv.shufflenet_v2_x0_5(num_classes=3), 32, "fc"),
    "sequential": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3)), 4, "3"),
}


def assert_same(net: nn.Module, model: Classifier, x: Any) -> None:
    net.eval()
    model.eval()
    with torch.no_grad():
        out = net(**x) if isinstance(x, dict) else net(x)
        logits = getattr(out, "logits", out)
        assert torch.equal(model(x), logits)
        assert torch.equal(model.head(model.features(x)), logits)
        again = model.unwrap().eval()
        out = again(**x) if isinstance(x, dict) else again(x)
        assert torch.equal(getattr(out, "logits", out), logits)


@pytest.mark.parametrize("name", IMAGE_NETS)
def test_an_image_net_answers_as_before(name: str) -> None:
    make, size, path = IMAGE_NETS[name]
    net = make()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    x = torch.randn(2, 3, size, size)
    model = wrap(net, example=x)
    assert (model.head_path, wrap(net).head_path) == (path, path)  # by use and by order
    assert (model.n_classes, model.trained) == (3, True)
    assert_same(net, model, x)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert net.get_submodule(path) is not model.head


def test_auxiliary_outputs_are_left_aside_in_training() -> None:
    model = wrap(tv.googlenet(num_classes=3, init_weights=False)).train()
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
def test_a_timm_net_answers_as_before(name: str) -> None:
    timm = pytest.importorskip("timm")
    net = timm.create_model(name, num_classes=3)
    x = torch.randn(2, *net.default_cfg["input_size"])
    model = wrap(net, example=x)
    assert model.head is not net.get_classifier()
    assert torch.equal(model.head.get_parameter("weight"), net.get_classifier().weight)
    assert_same(net, model, x)


def transformer(kind: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    bert = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes: dict[str, dict[str, Any]] = {
        "Bert": {"vocab_size": 20, "max_position_embeddings": 16, **bert},
        "Roberta": {"vocab_size": 20, "max_position_embeddings": 16, **bert},
        "DistilBert": {"vocab_size": 20, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
        "GPT2": {"vocab_size": 20, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1},
        "ViT": {"image_size": 16, "patch_size": 8, **bert},
    }
    config = getattr(transformers, f"{kind}Config")(num_labels=3, pad_token_id=0, **sizes[kind])
    task = "ForImageClassification" if kind == "ViT" else "ForSequenceClassification"
    net: nn.Module = getattr(transformers, f"{kind}{task}")(config)
    return net


@pytest.mark.parametrize(
    ("kind", "path"),
    [("Bert", "classifier"), ("Roberta", "classifier.out_proj"), ("DistilBert", "classifier"), ("GPT2", "score")],
)
def test_a_text_classifier_answers_as_before(kind: str, path: str) -> None:
    net = transformer(kind)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
    x = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    model = wrap(net, example=x)
    assert (model.head_path, wrap(net).head_path) == (path, path)
    assert model.features(x).shape == (2, 16)
    net.eval()
    with torch.no_grad():
        # GPT-2 applies its head to every token, and we to the one it picks: equal up to rounding
        torch.testing.assert_close(model.eval()(x), net(**x).logits)
        torch.testing.assert_close(model.unwrap()(**x).logits, net(**x).logits)


def test_a_transformers_image_classifier_answers_as_before() -> None:
    net, x = transformer("ViT"), torch.randn(2, 3, 16, 16)
    assert_same(net, wrap(net, example=x), x)


def test_a_linear_layer_is_all_head() -> None:
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    model = wrap(net, example=x)
    assert model.head_path == ""
    assert torch.equal(model.features(x), x)
    assert_same(net, model, x)
    assert isinstance(model.unwrap(), nn.Linear)


def test_the_example_finds_a_head_that_was_added_first() -> None:
    net, x = Custom(), torch.randn(2, 4)
    assert wrap(net, example=x).head_path == "answer"
    assert_same(net, wrap(net, head="answer"), x)
    with pytest.raises(InputError, match="linear layers: answer"):
        wrap(net).verify(x)  # the last one added is not the last one used


def test_an_aliased_head_is_replaced_at_all_its_places() -> None:
    net = nn.ModuleDict({"fc": nn.Linear(4, 2)})
    net["again"] = net["fc"]
    model = wrap(net)
    assert model.backbone.get_submodule("fc") is model.backbone.get_submodule("again")
    back = model.unwrap()
    assert back.get_submodule("fc") is back.get_submodule("again")
    assert isinstance(back.get_submodule("fc"), nn.Linear)


def test_changing_the_model_leaves_the_module_alone() -> None:
    net, x = Custom(), torch.randn(2, 4)
    before = net(x)
    model = wrap(net, head="answer")
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(net(x), before)


def test_a_classifier_is_returned_as_it_is() -> None:
    model = Classifier(nn.Flatten(), nn.Linear(2, 2))
    assert wrap(model) is model


def test_a_softmax_is_refused_with_the_example() -> None:
    with pytest.raises(InputError, match="Sequential does not end with its layer '0'"):
        wrap(nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)), example=torch.randn(2, 4))


def test_the_logits_of_a_net_that_ends_with_a_convolution_are_its_features() -> None:
    net, x = tv.squeezenet1_1(num_classes=3).eval(), torch.rand(2, 3, 64, 64)
    model = wrap(net, example=x).eval()
    assert (model.n_features, model.n_classes) == (3, 3)
    torch.testing.assert_close(model(x), net(x))
    torch.testing.assert_close(model.unwrap().eval()(x), net(x))


def test_a_net_without_a_linear_layer_or_a_1x1_convolution_has_no_head() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InputError, match="Sequential has no linear layer, so it has no head"):
        wrap(net)


class OneLogit(nn.Module):
    def __init__(self, shape: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.shape = nn.Linear(4, 6), nn.Linear(6, 1), shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shape(self.head(self.body(x).relu()))


@pytest.mark.parametrize(
    ("shape", "n_features"),
    [(lambda z: z, 6), (lambda z: z.squeeze(1), 6), (lambda z: z.flatten(), 1), (lambda z: z[:, 0], 1)],
    ids=["column", "squeezed", "flat", "indexed"],
)
def test_one_logit_becomes_two(shape: Callable[[torch.Tensor], torch.Tensor], n_features: int) -> None:
    net, x = OneLogit(shape), torch.randn(9, 4)
    model = wrap(net, example=x)
    assert (model.n_features, model.n_classes) == (n_features, 2)
    logit = net(x).reshape(-1)
    torch.testing.assert_close(model(x).softmax(dim=1)[:, 1], logit.sigmoid())
    assert torch.equal(model(x).argmax(dim=1), (logit > 0).long())


def test_a_sigmoid_after_one_logit_is_refused() -> None:
    with pytest.raises(InputError, match="does not end with its layer"):
        wrap(OneLogit(torch.sigmoid), example=torch.randn(9, 4))


def test_a_misspelt_head_is_answered_with_a_suggestion() -> None:
    with pytest.raises(
        InputError, match=r"Custom has no layer 'answr'. Did you mean 'answer'. Linear layers: answer, bo"
    ):
        wrap(Custom(), head="answr")


def test_a_head_that_is_not_linear_is_refused() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(2, 2))
    with pytest.raises(
        InputError, match=r"'0' of Sequential cannot be a head .expected nn.Linear, got Conv2d.*layers: 2"
    ):
        wrap(net, head="0")


def test_a_lazy_head_needs_a_run() -> None:
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(InputError, match="has no weights yet"):
        wrap(copy.deepcopy(net))
    assert wrap(net, example=torch.randn(2, 4)).n_features == 4


def test_a_lazy_body_needs_a_run() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))

    with pytest.raises(InputError, match=r"a layer of Sequential has no weights yet .got LazyLinear.*pass an example"):
        wrap(net())
    with pytest.raises(InputError, match="a layer of own model has no weights yet"):
        wrap(Classifier(nn.LazyLinear(8), nn.Linear(8, 3)))
    assert wrap(net(), example=torch.randn(2, 4)).backbone[0].in_features == 4  # type: ignore[index]  # a Sequential


def test_a_wrong_example_is_a_sentence() -> None:
    with pytest.raises(InputError, match="Custom does not accept this input"):
        wrap(Custom(), example=torch.randn(2, 5))


def test_a_module_that_cannot_be_copied_is_a_sentence() -> None:
    net = Custom()
    net.kept = Lock()  # type: ignore[assignment]  # what it keeps is its own business
    with pytest.raises(InputError, match="Custom cannot be copied"):
        wrap(net)


def test_a_compiled_module_is_taken_as_it_was_before() -> None:
    module, x = Custom(), torch.randn(5, 4)
    compiled: Any = torch.compile(module)
    model = wrap(compiled, example=x)
    assert torch.equal(model(x), module(x))
    assert isinstance(model.unwrap(), Custom)


def test_a_dict_without_logits_is_told_by_its_keys() -> None:
    class Odd(Custom):
        def forward(self, x: Tensor) -> Any:
            return {"out": super().forward(x)}

    with pytest.raises(InputError, match=r"does not return logits .*got a dict of out\)"):
        wrap(Odd(), example=torch.zeros(2, 4))


def test_a_classifier_is_verified_where_an_example_is_given() -> None:
    model = Classifier(nn.Flatten(), nn.Linear(4, 2))
    assert wrap(model, example=torch.zeros(2, 4)) is model
    with pytest.raises(InputError, match="does not accept this input"):
        wrap(Classifier(nn.Linear(9, 4), nn.Linear(4, 2)), example=torch.zeros(2, 4))


@pytest.mark.parametrize("run", [False, True])
def test_the_old_spectral_norm_is_refused_before_and_after_a_run_and_the_new_one_is_taken(run: bool) -> None:
    def net(norm: Any) -> nn.Module:
        made = nn.Sequential(norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2))
        if run:
            made(torch.rand(3, 4))
        return made

    with pytest.raises(
        InputError, match=r"cannot be copied after a forward pass.*Use torch\.nn\.utils\.parametrizations\.spec"
    ):
        wrap(net(nn.utils.spectral_norm))
    with pytest.raises(InputError, match="own model cannot be copied after a forward pass"):
        wrap(Classifier(nn.utils.spectral_norm(nn.Linear(4, 8)), nn.Linear(8, 2)))
    assert wrap(net(nn.utils.parametrizations.spectral_norm)).n_features == 8


def test_weights_that_are_computed_anew_in_every_run_are_refused() -> None:
    pruned = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    torch.nn.utils.prune.l1_unstructured(pruned[2], "weight", 0.5)  # type: ignore[no-untyped-call]
    with pytest.raises(InputError, match=r"pruned by torch.nn.utils.prune.*prune.remove\(layer, 'weight'\)"):
        wrap(pruned)  # what NeuronTune silences there would speak again
    torch.nn.utils.prune.remove(pruned[2], "weight")  # type: ignore[no-untyped-call]
    assert wrap(pruned).n_features == 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normed = nn.utils.weight_norm(nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"the old torch.nn.utils.weight_norm.*Use torch.nn.utils.parametrizations"):
        wrap(nn.Sequential(normed))


def test_parts_that_cannot_learn_or_are_not_there_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather not have it used
        traced = torch.jit.trace(nn.Linear(4, 8), torch.zeros(1, 4))  # type: ignore[no-untyped-call]
    with pytest.raises(InputError, match=r"scripted or traced.*Wrap the original module"):
        wrap(nn.Sequential(traced, nn.Linear(8, 2)))
    with torch.device("meta"):
        nowhere = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(InputError, match="on the device 'meta', which stores no weights"):
        wrap(nowhere, example=torch.zeros(2, 4))


def test_a_module_that_writes_into_its_input_is_refused_by_that_and_the_input_is_left() -> None:
    class Scaling(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            x -= 0.5
            return self[2](self[1](self[0](x)))

    x = torch.rand(5, 4)
    before = x.clone()
    with pytest.raises(
        InputError, match="Scaling changes its input in place"
    ):  # the second net of LfF would read the rest
        wrap(Scaling(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), head="2", example=x)
    assert torch.equal(x, before)
