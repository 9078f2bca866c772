"""The classifier: two parts that add up, copies that are equal, and a check that catches a wrong split."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.modules import eval_mode
from spurless.models.classifier import Classifier, HeadSlot, extract_tensor, find_head_slots, find_linear_layers
from spurless.models.wrapping import wrap


class Ending(nn.Module):
    """A net whose logits go through something more."""

    def __init__(self, ending: nn.Module) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.fc = nn.Linear(8, 3)
        self.ending = ending

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ending(self.fc(self.body(x).relu()))
        return out


def tiny() -> Classifier:
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU()), nn.Linear(5, 3), name="tiny")


def test_logits_are_the_head_of_the_features() -> None:
    model, x = tiny(), torch.randn(6, 1, 2, 2)
    assert model.features(x).shape == (6, 5)
    assert torch.equal(model(x), model.head(model.features(x)))


def test_counts_by_hand() -> None:
    model = tiny()
    assert (model.n_features, model.n_classes) == (5, 3)
    assert model.parameters_count == (4 * 5 + 5) + (5 * 3 + 3)


def test_a_head_that_is_not_linear_has_no_counts() -> None:
    model = Classifier(nn.Flatten(), nn.Sequential(nn.Linear(4, 2)))
    with pytest.raises(InputError, match=r"the head of own model is not linear .expected nn.Linear, got Sequential."):
        _ = model.n_classes
    model.verify(torch.zeros(2, 4))


def test_a_dict_of_tensors_becomes_keyword_arguments() -> None:
    class Sum(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left + right

    model = Classifier(Sum(), nn.Linear(2, 2))
    x = {"right": torch.ones(3, 2), "left": torch.ones(3, 2)}
    assert model.features(x).tolist() == [[2.0, 2.0]] * 3
    model.verify(x)


def test_copies_and_pickles_answer_alike() -> None:
    model, x = wrap(Ending(nn.Identity())), torch.randn(2, 4)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert torch.equal(twin(x), model(x))
        assert (twin.name, twin.options, twin.trained, twin.head_path) == ("Ending", {"head": "fc"}, True, "fc")


def test_the_names_of_the_weights_are_stable() -> None:
    assert list(tiny().state_dict()) == ["backbone.1.weight", "backbone.1.bias", "head.weight", "head.bias"]
    names = ["backbone.body.weight", "backbone.body.bias", "head.weight", "head.bias"]
    assert list(wrap(Ending(nn.Identity())).state_dict()) == names


def test_unwrap_puts_the_current_head_back() -> None:
    net, x = Ending(nn.Identity()), torch.randn(2, 4)
    model = wrap(net)
    assert torch.equal(model.unwrap()(x), net(x))
    model.head = nn.Linear(8, 7)
    own = model.unwrap()
    assert isinstance(own, Ending)
    assert torch.equal(own(x), model(x))
    assert own.fc is not model.head
    assert list(own.state_dict()) == list(net.state_dict())


def test_unwrap_of_a_model_in_two_parts_is_a_sequential() -> None:
    model, x = tiny(), torch.randn(2, 4)
    assert torch.equal(model.unwrap()(x), model(x))


def test_verify_passes_a_head_that_is_the_end() -> None:
    wrap(Ending(nn.Identity())).verify(torch.randn(2, 4))
    wrap(Ending(nn.Dropout())).verify(torch.randn(2, 4))  # nothing at prediction


@pytest.mark.parametrize("ending", [nn.Softmax(dim=1), nn.LogSoftmax(dim=1), nn.ReLU(), nn.Sigmoid(), nn.LayerNorm(3)])
def test_verify_refuses_what_comes_after_the_head(ending: nn.Module) -> None:
    model = wrap(Ending(ending))
    sentence = "Ending (does not end with|cannot run without) its layer 'fc'.*other linear layers: body"
    with pytest.raises(InputError, match=sentence):
        model.verify(torch.randn(2, 4))
    assert find_head_slots(model.backbone) == ["fc"]  # the probe is gone


def test_verify_is_not_fooled_by_a_head_of_zeros() -> None:
    net = Ending(nn.ReLU())
    nn.init.zeros_(net.fc.weight)
    nn.init.zeros_(net.fc.bias)
    with pytest.raises(InputError, match="does not end with its layer 'fc'"):
        wrap(net).verify(torch.randn(2, 4))


@pytest.mark.parametrize("sign", [1, -1])
def test_verify_is_not_fooled_by_a_lucky_sign(sign: int) -> None:
    class OneSided(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return sign * (sign * z).relu()

    net = Ending(OneSided())
    net.fc = nn.Linear(8, 1)  # a single logit is on one side of zero, where one of the two endings is the identity
    with pytest.raises(InputError, match="does not end with its layer 'fc'"):
        wrap(net).verify(torch.randn(1, 4))


def test_verify_refuses_a_layer_before_the_last() -> None:
    with pytest.raises(InputError, match=r'cannot run without its layer .body.*wrap\(module, head="name"\).*: fc'):
        wrap(Ending(nn.Identity()), head="body").verify(torch.randn(2, 4))


def test_verify_says_when_the_input_is_wrong() -> None:
    with pytest.raises(InputError, match=r"Ending does not accept this input: .*mat1 and mat2"):
        wrap(Ending(nn.Identity())).verify(torch.randn(2, 5))


def test_verify_refuses_features_that_are_not_rows() -> None:
    model = Classifier(nn.Identity(), nn.Linear(4, 3))
    with pytest.raises(InputError, match=r"features of own model .* \(expected \(2, d\), got \(2, 3, 4\)\)"):
        model.verify(torch.randn(2, 3, 4))


def test_verify_refuses_logits_of_another_shape() -> None:
    model = Classifier(nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.Unflatten(1, (3, 1))))
    with pytest.raises(InputError, match=r"logits of own model .* got \(2, 3, 1\)"):
        model.verify(torch.randn(2, 4))


def test_verify_leaves_modes_weights_and_the_global_generator_alone() -> None:
    model = wrap(Ending(nn.Identity()))
    model.train()
    model.backbone.eval()
    before, state = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    model.verify(torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(before, torch.get_rng_state())
    assert (model.training, model.backbone.training, model.head.training) == (True, False, True)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_evaluating_gives_the_modes_back_after_an_error() -> None:
    model = tiny()
    model.backbone.eval()

    def fail() -> None:
        with eval_mode(model):
            assert not model.training
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (model.training, model.backbone.training) == (True, False)


def test_the_projection_of_attention_is_no_candidate() -> None:
    net = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 1), "fc": nn.Linear(4, 2)})
    assert list(find_linear_layers(net)) == ["fc"]


def test_plain_finds_the_tensor() -> None:
    t = torch.zeros(1)
    assert all(extract_tensor(output) is t for output in (t, {"logits": t}, (t, "more")))
    with pytest.raises(InputError, match="the module does not return logits"):
        extract_tensor({"scores": t})


def test_a_head_place_lets_features_through() -> None:
    t = torch.randn(2, 3)
    assert HeadSlot(3, 2)(t) is t


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_that_is_already_on_the_accelerator_is_checked_there() -> None:
    model = wrap(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).cuda()
    model.verify(torch.zeros(2, 1, 2, 2))


class Scaled(nn.Linear):
    """A linear layer by name."""

    def forward(self, x: Tensor) -> Tensor:
        return 5 * super().forward(nn.functional.normalize(x))


def test_a_head_that_is_linear_by_name_only_is_refused() -> None:
    # NeuronTune and DFR would take it for the product that it is not
    for model in (Classifier(nn.Flatten(), Scaled(4, 3)), wrap(nn.Sequential(nn.Linear(4, 4), Scaled(4, 3)))):
        with pytest.raises(InputError, match=r"does not compute a plain linear layer .got Scaled"):
            model.verify(torch.randn(2, 4))


def test_a_backbone_of_several_inputs_is_called_by_their_names_once_unwrapped() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, None]:
            return a + b, None

    model, x = Classifier(Two(), nn.Linear(3, 2)), {"a": torch.randn(4, 3), "b": torch.randn(4, 3)}
    assert torch.equal(model.unwrap()(**x), model(x))
    assert type(Classifier(nn.Flatten(), nn.Linear(3, 2)).unwrap()) is nn.Sequential
