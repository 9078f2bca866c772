"""Recipes: training settings of published experiments by name, for ``fit(train=NAME)`` and ``--recipe NAME``.

A recipe configures the training loop, a preset configures a method. Recipes are named after the dataset and the paper.
What the named place does not state is in the note; methods that train again with settings of their own, such as the
last layer in NeuronTune, have them in their presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spurless.core.config import configure
from spurless.core.errors import UnknownNameError
from spurless.train.config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """Training settings of a published experiment."""

    name: str
    source: str  # paper, and the place in it
    network: str
    train: TrainConfig
    note: str = ""  # what the place does not state, and where it is from


NEURONTUNE = "NeuronTune (Zheng et al. 2025, arXiv:2505.24048), Table 9"
MASKTUNE = "MaskTune (Taghanaki et al. 2022, arXiv:2210.00055), section 3"
DCWP = "DCWP (Park et al. 2023, arXiv:2210.05247), appendix E.2"
LFF = "LfF (Nam et al. 2020, arXiv:2007.02561), authors' code"
DISENT = "DisEnt (Lee et al. 2021, arXiv:2107.01372), authors' code"
LARGE_LR = "Large Learning Rates (Barsbey et al. 2025, arXiv:2507.17748), section 4.2, Table 1"
IZMAILOV = "Izmailov et al. 2022 (arXiv:2210.11369), authors' code"
RESNET18, RESNET50 = ("torchvision:resnet18, pretrained", "torchvision:resnet50, pretrained")
DCWP_NOTE = "beta2 and the batch size are those of the authors' scripts; 10,000 steps end before the epochs do"
NO_DECAY: dict[str, Any] = {"optimiser": "adam", "weight_decay": 0.0}


def _until_all_correct(dataset: str, lr: float) -> Recipe:
    """Return the settings of the learning-rate study with ResNet-18."""
    train = TrainConfig(epochs=1000, batch_size=100, lr=lr, momentum=0.0, weight_decay=0.0, stop_accuracy=1.0)
    note = "the highest rate of Table 1; training ends at an accuracy of 100 % on train, the epochs are only a limit"
    return Recipe(f"{dataset}-large-lr", LARGE_LR, "torchvision:resnet18", train, note)


def _halved(**settings: Any) -> TrainConfig:
    """Return settings of MaskTune whose rate is halved every 25 epochs."""
    return TrainConfig(schedule="step", decay_epochs=25, decay_factor=0.5, **settings)


def _swapped(**settings: Any) -> TrainConfig:
    """Return settings of DisEnt, whose rate decays every 10,000 steps once the swapping has begun."""
    decays = (20_000, 30_000, 40_000)
    return TrainConfig(steps=50_000, schedule="step", decay_at=decays, **NO_DECAY, **settings)


MOMENTUM_NOTE = "momentum 0.9 is not in the table, but in other code of the authors"
MASKTUNE_NOTE = "the authors' code never decays the rate"
TENTHS: dict[str, Any] = {"epochs": 80, "schedule": "step", "decay_epochs": 20, "decay_factor": 0.1}
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "waterbirds-neurontune",
            f"{NEURONTUNE}, Waterbirds",
            RESNET50,
            TrainConfig(epochs=100, batch_size=32, lr=3e-3, schedule="cosine"),
            MOMENTUM_NOTE,
        ),
        Recipe(
            "celeba-neurontune",
            f"{NEURONTUNE}, CelebA",
            RESNET50,
            TrainConfig(epochs=20, batch_size=128, lr=3e-3, schedule="cosine"),
            MOMENTUM_NOTE,
        ),
        Recipe(
            "imagenet-9-neurontune",
            f"{NEURONTUNE}, ImageNet-9",
            RESNET18,
            # a tenth after 40, 60 and 80 epochs of 427 steps
            TrainConfig(epochs=120, batch_size=128, lr=1e-3, schedule="step", decay_at=(17_080, 25_620, 34_160)),
            f"the decays count steps of the 54,600 training images of imagenet-a; {MOMENTUM_NOTE}",
        ),
        Recipe(
            "multinli-neurontune",
            f"{NEURONTUNE}, MultiNLI",
            "hf:bert-base-uncased",
            TrainConfig(epochs=10, batch_size=16, optimiser="adamw", lr=1e-5, schedule="linear"),
        ),
        Recipe(
            "civilcomments-neurontune",
            f"{NEURONTUNE}, CivilComments",
            "hf:bert-base-uncased",
            TrainConfig(epochs=10, batch_size=16, optimiser="adamw", lr=1e-3, schedule="linear"),
            "the rate is that of the table; 1e-5, as for MultiNLI, is usual for BERT",
        ),
        Recipe(
            "waterbirds-izmailov",
            IZMAILOV,
            RESNET50,
            TrainConfig(epochs=100, batch_size=32, lr=3e-3, schedule="cosine"),
        ),
        Recipe(
            "celeba-izmailov",
            IZMAILOV,
            RESNET50,
            TrainConfig(epochs=20, batch_size=100, lr=3e-3, schedule="cosine"),
        ),
        Recipe(
            "waterbirds-dfr",
            "DFR (Kirichenko et al. 2023, arXiv:2204.02937), authors' code",
            RESNET50,
            TrainConfig(epochs=100, batch_size=32, lr=1e-3, weight_decay=1e-3),
        ),
        Recipe(
            "biased-mnist-masktune",
            f"{MASKTUNE}, biased MNIST",
            "small-cnn",
            _halved(epochs=100, batch_size=128, lr=0.01),
            MASKTUNE_NOTE,
        ),
        Recipe(
            "celeba-masktune",
            f"{MASKTUNE}, CelebA",
            RESNET50,
            TrainConfig(epochs=20, batch_size=512, lr=1e-4),
        ),
        Recipe(
            "cifar10-masktune",
            f"{MASKTUNE}, CIFAR-10",
            "resnet32",
            _halved(epochs=300, batch_size=128, lr=0.1),
            MASKTUNE_NOTE,
        ),
        Recipe(
            "svhn-masktune",
            f"{MASKTUNE}, SVHN",
            "resnet32",
            _halved(epochs=300, batch_size=1024, lr=0.1, weight_decay=5e-4),
            f"the batch size of the authors' scripts is 128; {MASKTUNE_NOTE}",
        ),
        Recipe(
            "cats-vs-dogs-masktune",
            f"{MASKTUNE}, Cats vs. Dogs",
            "resnet32",
            # a tenth after 50 epochs of 125 steps
            TrainConfig(epochs=200, batch_size=128, optimiser="adam", lr=1e-3, schedule="step", decay_at=(6250,)),
            "the decay counts steps of the 16,000 training images of cats-vs-dogs",
        ),
        Recipe(
            "colored-mnist-dcwp",
            f"{DCWP}, CMNIST",
            "pooled-cnn",
            TrainConfig(steps=10_000, batch_size=256, lr=0.01, beta2=0.99, **NO_DECAY),
            DCWP_NOTE,
        ),
        Recipe(
            "corrupted-cifar10-dcwp",
            f"{DCWP}, CIFAR10-C",
            RESNET18,
            TrainConfig(steps=10_000, batch_size=256, lr=1e-3, beta2=0.99, **NO_DECAY),
            DCWP_NOTE,
        ),
        Recipe(
            "bffhq-dcwp",
            f"{DCWP}, BFFHQ",
            RESNET18,
            TrainConfig(steps=10_000, batch_size=64, lr=1e-3, beta2=0.99, **NO_DECAY),
            DCWP_NOTE,
        ),
        Recipe(
            "colored-mnist-disent-dcwp",
            "DCWP (Park et al. 2023), history of the authors' code, row DisEnt of Table 1",
            "pooled-cnn",
            TrainConfig(
                steps=17_000,
                batch_size=256,
                lr=1e-3,
                beta2=0.99,
                schedule="step",
                decay_at=(10_000,),
                decay_factor=0.5,
                **NO_DECAY,
            ),
            "for the method disent; evaluated on test at step 15,000",
        ),
        Recipe(
            "colored-mnist-ablation",
            "DCWP (Park et al. 2023), history of the authors' code, Table 2",
            "pooled-cnn",
            TrainConfig(
                steps=2000,
                batch_size=256,
                lr=0.1,
                schedule="step",
                decay_at=(600, 1200, 1800),
                decay_factor=0.1,
            ),
            "for the method dcwp with the preset of the same name",
        ),
        Recipe(
            "colored-mnist-lff",
            LFF,
            "mlp with depth=4, width=100, bias=true, divisor=255",
            TrainConfig(epochs=100, batch_size=256, lr=1e-3, **NO_DECAY),
        ),
        Recipe(
            "corrupted-cifar10-lff",
            LFF,
            "resnet20",
            TrainConfig(epochs=200, batch_size=256, lr=1e-3, **NO_DECAY),
        ),
        Recipe(
            "colored-mnist-disent",
            DISENT,
            "mlp with depth=4, width=100, features=16, bias=true, divisor=255",
            _swapped(batch_size=256, lr=0.01, decay_factor=0.5),
            "for the method disent",
        ),
        Recipe(
            "corrupted-cifar10-disent",
            DISENT,
            "torchvision:resnet18",
            _swapped(batch_size=256, lr=1e-3, decay_factor=0.5),
            "for the method disent; the rate is 5e-4 at 0.5 % of conflicting images",
        ),
        Recipe(
            "colored-mnist-rebias",
            "ReBias (Bahng et al. 2020, arXiv:1910.02806), authors' code",
            "rebias-cnn",
            TrainConfig(batch_size=256, optimiser="adam", lr=1e-3, weight_decay=1e-4, **TENTHS),
            "for the method rebias",
        ),
        Recipe(
            "colored-mnist-end",
            "EnD (Tartaglione et al. 2021, arXiv:2103.02023), authors' code",
            "rebias-cnn with last=tanh, unit=true, centred=true",
            TrainConfig(batch_size=256, optimiser="adam", lr=1e-3, weight_decay=1e-4, **TENTHS),
            "for the method end",
        ),
        Recipe(
            "gaussians-avp",
            "AVP (Malik and Fern), section 4.1",
            "mlp with depth=3, width=32, activation=tanh, bias=true",
            TrainConfig(epochs=10_000, batch_size=525, lr=0.03, stop_accuracy=1.0, **NO_DECAY),
            "full batches as in the authors' code; the rate is ours, the one of four that overfits soonest",
        ),
        _until_all_correct("colored-mnist", 0.25),
        _until_all_correct("corrupted-cifar10", 0.5),
        _until_all_correct("double-mnist", 0.1),
        _until_all_correct("mnist-cifar", 0.25),
    )
}


def get_recipe(name: str) -> Recipe:
    """Return the recipe of that name."""
    if name not in RECIPES:
        raise UnknownNameError("recipe", name, RECIPES)
    return RECIPES[name]


REPLACES = {"epochs": "steps", "decay_epochs": "decay_at"}
"""Settings that are ignored if another one is set: given alone, they replace the other one of a recipe."""


def make_train_config(settings: TrainConfig | Mapping[str, Any] | str | None) -> TrainConfig:
    """Return training settings: given ones, a dict of fields, or the name of a recipe.

    The dict may have the name of a recipe as ``recipe``; its other values override those of the recipe.

    Example:
        >>> config = make_train_config({"recipe": "waterbirds-izmailov", "epochs": 5})
        >>> config.lr, config.epochs
        (0.003, 5)

    Raises:
        UnknownNameError: no recipe has that name.
        InputError: a setting does not exist or cannot have that value.
    """
    if isinstance(settings, TrainConfig):
        return settings
    options = {"recipe": settings} if isinstance(settings, str) else dict(settings or {})
    name = options.pop("recipe", None)
    given = configure(TrainConfig, options, "the training loop")
    if name is None:
        return given
    names = {option.replace("-", "_") for option in options}
    defaults = [replaced for option, replaced in REPLACES.items() if option in names]
    changes = {option: getattr(given, option) for option in [*defaults, *names]}  # if not given, the default
    return replace(get_recipe(str(name)).train, **changes)
