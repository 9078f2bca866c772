"""Recipes: the settings of the papers' tables, and what overrides them."""

import pytest

from spurless.core.errors import InputError, UnknownNameError
from spurless.data import load
from spurless.fitting import fit
from spurless.models import build, get_architecture
from spurless.train.config import TrainConfig, learning_rate
from spurless.train.recipes import RECIPES, get_recipe, make_train_config

# NeuronTune, Table 9: initial rate, epochs, schedule, optimiser, weight decay, batch size
TABLE_9 = {
    "waterbirds": (3e-3, 100, "cosine", "sgd", 1e-4, 32),
    "celeba": (3e-3, 20, "cosine", "sgd", 1e-4, 128),
    "imagenet-9": (1e-3, 120, "step", "sgd", 1e-4, 128),
    "multinli": (1e-5, 10, "linear", "adamw", 1e-4, 16),
    "civilcomments": (1e-3, 10, "linear", "adamw", 1e-4, 16),
}


@pytest.mark.parametrize("data", TABLE_9)
def test_table_9_of_neurontune(data: str) -> None:
    train = get_recipe(f"{data}-neurontune").train
    settings = (train.lr, train.epochs, train.schedule, train.optimiser, train.weight_decay, train.batch_size)
    assert (settings, train.steps, train.momentum) == (TABLE_9[data], None, 0.9)


def test_the_decays_of_imagenet_9_and_cats_vs_dogs_are_at_the_published_epochs() -> None:
    def rates(name: str, n_train: int, epochs: tuple[int, ...]) -> list[float]:
        train = get_recipe(name).train
        per_epoch = -(-n_train // train.batch_size)
        total = train.epochs * per_epoch
        return [learning_rate(train, epoch * per_epoch, total, per_epoch) for epoch in epochs]

    expected = [1e-3, 1e-4, 1e-4, 1e-5, 1e-6, 1e-6]
    assert rates("imagenet-9-neurontune", 54_600, (39, 40, 59, 60, 80, 119)) == pytest.approx(expected)
    assert rates("cats-vs-dogs-masktune", 16_000, (0, 49, 50, 199)) == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4])
    assert rates("cifar10-masktune", 40_000, (0, 24, 25, 50)) == pytest.approx([0.1, 0.1, 0.05, 0.025])


def test_the_settings_of_the_other_papers() -> None:
    dcwp = get_recipe("colored-mnist-dcwp").train
    assert (dcwp.steps, dcwp.lr, dcwp.beta2, dcwp.batch_size, dcwp.optimiser) == (10_000, 0.01, 0.99, 256, "adam")
    assert get_recipe("corrupted-cifar10-dcwp").train.lr == 1e-3
    svhn = get_recipe("svhn-masktune").train
    assert (svhn.weight_decay, svhn.batch_size, svhn.epochs, svhn.decay_epochs) == (5e-4, 1024, 300, 25)
    study = get_recipe("colored-mnist-large-lr").train
    assert (study.lr, study.batch_size, study.momentum, study.weight_decay) == (0.25, 100, 0.0, 0.0)
    assert study.stop_accuracy == 1.0
    swap = get_recipe("colored-mnist-disent").train
    assert [learning_rate(swap, step, 50_000, 1) for step in (19_999, 20_000, 30_000, 49_999)] == pytest.approx(
        [0.01, 0.005, 0.0025, 0.00125]
    )
    ablation = get_recipe("colored-mnist-ablation").train
    assert [learning_rate(ablation, step, 2000, 1) for step in (599, 600, 1999)] == pytest.approx([0.1, 0.01, 1e-4])
    ours = get_recipe("colored-mnist-disent-dcwp").train
    assert [learning_rate(ours, step, 17_000, 1) for step in (9_999, 10_000, 16_999)] == pytest.approx(
        [1e-3, 5e-4, 5e-4]
    )


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_names_its_source_and_a_known_network(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.name == name
    assert recipe.source
    network, _, options = recipe.network.partition(" with ")
    row = get_architecture(network.partition(",")[0])
    names = {option.partition("=")[0] for option in options.split(", ") if option}
    assert names <= set(row.config.__dataclass_fields__)


def test_explicit_settings_override_a_recipe() -> None:
    assert make_train_config("waterbirds-izmailov") == get_recipe("waterbirds-izmailov").train
    changed = make_train_config({"recipe": "waterbirds-izmailov", "batch-size": "64", "lr": 0.1})
    assert (changed.batch_size, changed.lr, changed.epochs, changed.schedule) == (64, 0.1, 100, "cosine")
    # settings that would be ignored next to those of the recipe replace them
    assert make_train_config({"recipe": "colored-mnist-dcwp", "epochs": 3}).steps is None
    both = make_train_config({"recipe": "colored-mnist-dcwp", "epochs": 3, "steps": 7})
    assert (both.epochs, both.steps) == (3, 7)
    assert make_train_config({"recipe": "colored-mnist-disent", "decay_epochs": 5}).decay_at == ()
    own = TrainConfig(lr=3.0)
    assert make_train_config(own) is own
    assert make_train_config(None) == TrainConfig()


def test_unknown_recipes_and_settings_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"No recipe is called 'waterbird-izmailov'. Did you mean 'waterbirds-i"):
        make_train_config("waterbird-izmailov")
    with pytest.raises(InputError, match=r"the training loop has no option 'epoch'"):
        make_train_config({"recipe": "waterbirds-izmailov", "epoch": 3})


def test_a_recipe_and_its_settings_are_the_same_run() -> None:
    data = load("planted", seed=0, n_train=200, n_val=50, n_test=50)
    model = build("mlp", data, width=4)
    named = fit("erm", model, data, train={"recipe": "colored-mnist-dcwp", "steps": 2})
    given = {"optimiser": "adam", "lr": 0.01, "beta2": 0.99, "batch_size": 256, "weight_decay": 0.0, "steps": 2}
    typed = fit("erm", model, data, train=given)
    assert named.record.key == typed.record.key
    assert named.record.train["lr"] == 0.01
