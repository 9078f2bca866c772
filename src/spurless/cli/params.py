"""Options shared by several commands, declared once as dataclasses.

A command takes such a dataclass as a parameter, and :func:`expand_params` turns its fields into Typer options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from spurless.core.config import parse_pairs
from spurless.core.errors import InputError, UnknownNameError
from spurless.train.config import TrainConfig

if TYPE_CHECKING:
    from spurless.bench.executors import Resources
    from spurless.train.run import Compute

DATA, MODEL, METHOD, TRAINING, COMPUTE = "Data", "Model", "Method", "Training", "Compute"
SELECTIVE, OUTPUT = "Selective prediction", "Output"
CUSTOM_METHOD = (
    "(see: spurless ls methods); or FILE.py:METHOD or package.module:METHOD, your own code, which is then run"
)

SPLITS = ("train", "val", "test")
PARAM = "typer"  # key of a Typer parameter in the metadata of a field

T = TypeVar("T")


def expand_params(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass-typed parameter of a command by one Typer option per field.

    The fields are declared with :func:`param`, or have the type of a Typer parameter, or are dataclasses themselves.
    The command is called with instances of the dataclasses.

    Raises:
        TypeError: two options have the same name.
    """
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    expanded: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        expanded += _parameters(name, hints[name], parameter.default)
    names = [parameter.name for parameter in expanded]
    if len(set(names)) < len(names):
        raise TypeError(f"{command.__name__} has two options with the same name: {sorted(names)}")

    @wraps(command)
    def run(**values: Any) -> None:
        command(**{name: _collect(name, hint, values) for name, hint in hints.items()})

    run.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]  # Typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    return run


def _parameters(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    """Yield a parameter, or those of the fields if its type is a dataclass."""
    if is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        for item in fields(hint):
            yield from _parameters(item.name, hints[item.name], item)
        return
    if isinstance(default, Field):
        hint = Annotated[hint, default.metadata[PARAM]] if PARAM in default.metadata else hint
        value = default.default if default.default_factory is MISSING else default.default_factory()
        default = inspect.Parameter.empty if value is MISSING else value
    yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)


def _collect(name: str, hint: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of a parameter, or an instance of its dataclass."""
    if not is_dataclass(hint):
        return values[name]
    hints = get_type_hints(hint)
    return hint(**{item.name: _collect(item.name, hints[item.name], values) for item in fields(hint)})  # type: ignore[operator]


def option(panel: str | None, help: str, *flags: str, **settings: Any) -> Any:
    """Return an option of a help panel, for the type of a parameter."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **settings)


def pairs(panel: str, help: str, *flags: str) -> Any:
    """Return an option that is given as KEY=VALUE, possibly several times."""
    return option(panel, f"{help}; repeat for more.", *flags, metavar="KEY=VALUE")


def param(default: Any, panel: str | None, help: str, *flags: str, **settings: Any) -> Any:
    """Declare a parameter or a field as an option; a callable default is a factory."""
    value = {"default_factory" if callable(default) else "default": default}
    return field(**value, metadata={PARAM: option(panel, help, *flags, **settings)})


def flag(panel: str | None, help: str, name: str) -> Any:
    """Declare a parameter or a field as an option without a value."""
    return param(False, panel, help, name, metavar="")


DATA_HELP = "Name (see: spurless ls datasets) or path: class folders, CSV, npz, a Hugging Face dataset on disk."
DataOption = Annotated[list[str], pairs(DATA, "Option of the dataset, such as conflicting=0.01", "--data-option", "-D")]
ROOT_HELP = "Folder of a named dataset's files, or base folder of the image files in a CSV."
ROOT_DEFAULT = "$SPURLESS_DATA, else data; the folder of the CSV"
Root = Annotated[Path | None, option(DATA, ROOT_HELP, metavar="FOLDER", show_default=ROOT_DEFAULT)]
ModelOption = Annotated[
    list[str], pairs(MODEL, "Option of the model, such as width=64, or head=NAME for your own", "--model-option", "-O")
]
MethodOption = Annotated[list[str], pairs(METHOD, "Option of the method, such as upweight=20", "--method-option", "-M")]
Seed = Annotated[int, option(None, "Seed for data, initial weights and training.", min=0)]
DataSeed = Annotated[int, option(None, "Seed for sampling and splitting the data.", min=0)]
Device = Annotated[str, option(COMPUTE, "Device: auto, cpu, cuda or cuda:1.")]
Precision = Annotated[str, option(COMPUTE, "Precision: auto (float32), bf16-mixed or 16-mixed.")]
Onnx = Annotated[Path | None, option(OUTPUT, "Also export the model as ONNX to this file.", metavar="ONNX")]
Compact = Annotated[
    bool, option(OUTPUT, "Remove channels without effect from the ONNX model.", "--compact", metavar="")
]
Json = Annotated[bool, option(OUTPUT, "Print JSON instead of text.", "--json", metavar="")]
OpenPage = Annotated[bool, option(OUTPUT, "Open the page in the browser.", "--open", metavar="")]
Quiet = Annotated[bool, option(OUTPUT, "Do not show progress bars.", "--quiet", metavar="")]
TRACK_HELP = (
    "Log every run, epoch by epoch, with csv, tensorboard, mlflow or wandb (offline); choose the folder as csv:FOLDER. "
    "All but csv need pip install 'spurless\\[track]'."
)
Track = Annotated[str | None, option(OUTPUT, TRACK_HELP, metavar="KIND", show_default="off; the folder is OUT/track")]

TRACK_RESULT_HELP = (
    "Log the result as one run with its page, with csv, tensorboard, mlflow or wandb (offline); choose the folder as "
    "csv:FOLDER. All but csv need pip install 'spurless\\[track]'."
)
TrackResult = Annotated[
    str | None, option(OUTPUT, TRACK_RESULT_HELP, metavar="KIND", show_default="off; the folder is track")
]


def _parsed(name: str) -> property:
    """Return a property that parses the KEY=VALUE words of a field."""
    return property(lambda params: parse_pairs(getattr(params, name), f"--{name.replace('_', '-')}"))


def _column(help: str, metavar: str = "COLUMN", show_default: str | bool = True) -> Any:
    return param(None, DATA, help, metavar=metavar, show_default=show_default)


@dataclass(frozen=True)
class Columns:
    """Columns of a table, folder of the files, format of images, and order of the classes."""

    label: str | None = _column("Column of the class in a CSV.")
    attribute: str | None = _column("Column of the attribute; several as A,B.")
    split: str | None = _column("Column of the split: train, val, test or 0, 1, 2.", show_default="random split")
    features: str | None = _column("CSV columns of numeric features, as A,B.", "COLUMNS", "all other columns")
    file: str | None = _column("CSV column of the image files.", show_default="file, path or image")
    text: str | None = _column("Text column of a CSV or Hugging Face dataset, or two as A,B for text pairs.", "COLUMNS")
    root: Root = None
    skip_bad: bool = flag(DATA, "Skip and list images that cannot be read; for class folders and CSVs.", "--skip-bad")
    classes: str | None = _column(
        "Classes of a folder or CSV in the order of the model's outputs, as A,B.", "NAMES", "natural order"
    )
    channels: int | None = param(
        None, DATA, "Read images with 1 or 3 channels.", min=1, max=3, show_default="3, or those of the weights"
    )
    size: int | None = param(
        None, DATA, "Resize images to this side and crop the center.", min=1, show_default="as they are"
    )


@dataclass(frozen=True)
class DataParams:
    """Dataset of a command."""

    data: str = param("patched-digits", DATA, DATA_HELP, "--data", "--dataset")
    data_option: DataOption = field(default_factory=list)
    columns: Columns = field(default_factory=Columns)

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the dataset."""
        return parse_pairs(self.data_option, "--data-option")

    @property
    def inputs(self) -> tuple[str | Path | None, ...]:
        """Return the data and the folder of its files, which outputs must not overwrite."""
        return self.data, self.columns.root


@dataclass(frozen=True)
class DataArgument(DataParams):
    """Dataset of a command that takes it as an argument."""

    data: Annotated[str, typer.Argument(help=DATA_HELP, metavar="DATA")] = field()


@dataclass(frozen=True)
class ModelParams:
    """Model to build."""

    model: str = param(
        "small-cnn",
        MODEL,
        "Model to build (see: spurless ls models), such as torchvision:resnet18 or hf:FOLDER; or FILE.py:FACTORY "
        "or package.module:FACTORY, your own code, which is then run.",
    )
    model_option: ModelOption = field(default_factory=list)

    options = _parsed("model_option")


WEIGHTS_HELP = "Safetensors file of a trained model, or folder of a Hugging Face text classifier."


@dataclass(frozen=True)
class WeightsParams:
    """Trained model of a command, and how it takes images."""

    weights: Annotated[Path, typer.Argument(help=WEIGHTS_HELP, metavar="WEIGHTS")]
    model: str | None = param(
        None,
        MODEL,
        "Model of the weights; FILE.py:FACTORY or package.module:FACTORY for your own code, which is then run.",
        show_default="the one named in the file",
    )
    model_option: ModelOption = field(default_factory=list)
    mean: str | None = param(
        None,
        MODEL,
        "Mean by which images in \\[0, 1] are normalized, one number per channel; 0 with --std 1 for none.",
        metavar="A,B,C",
        show_default="that of the model, if its weights were trained elsewhere",
    )
    std: str | None = param(
        None, MODEL, "Standard deviation by which images are normalized.", metavar="A,B,C", show_default="as for --mean"
    )
    seed: int | None = param(
        None, None, "Seed for sampling and splitting the data.", min=0, show_default="the seed in the weights, else 0"
    )

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the model, with the normalization among them."""
        normalization = {"mean": self.mean, "std": self.std}
        given = {key: value for key, value in normalization.items() if value is not None}
        return {**parse_pairs(self.model_option, "--model-option"), **given}


@dataclass(frozen=True)
class MethodParams:
    """Configuration of a method."""

    preset: str | None = param(None, METHOD, "Named configuration of the method.", show_default="the method's first")
    method_option: MethodOption = field(default_factory=list)
    select: str = param(
        "last", METHOD, "Epoch to keep: last, or a criterion such as val-average (see: spurless ls criteria)."
    )

    options = _parsed("method_option")


TRAIN_HELP = {
    "epochs": "Passes over the train split.",
    "steps": "Number of steps; overrides --epochs.",
    "batch_size": "Examples per step.",
    "optimiser": "Optimizer",
    "lr": "Learning rate.",
    "momentum": "Momentum of SGD, first beta of Adam.",
    "beta2": "Second beta of Adam and AdamW.",
    "weight_decay": "L2 penalty.",
    "l1": "L1 penalty on all trained parameters.",
    "asam": "Radius rho of adaptive sharpness-aware minimization (ASAM); 0 is off.",
    "asam_scale": "Parameters that ASAM perturbs in proportion to their size",
    "schedule": "Learning-rate schedule",
    "decay_epochs": "Epochs between two decays, with --schedule step.",
    "decay_at": "Steps of the decays, as 1000,2000, with --schedule step; replaces --decay-epochs.",
    "decay_factor": "Factor of each decay, with --schedule step.",
    "decay_fraction": "Last fraction of the steps, over which warmup-stable-decay falls to 0.",
    "warmup_steps": "Steps of linear warm-up.",
    "clip": "Maximum norm of the gradient.",
    "stop_accuracy": "Stop after an epoch with this accuracy on train, between 0 and 1.",
    "stop_loss": "Stop after an epoch with a mean loss below this.",
}


def _add_options(config: type, helps: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Give a class an optional field per field of ``config``; None keeps the default, which --help shows."""

    def add(cls: type[T]) -> type[T]:
        hints = get_type_hints(config)
        cls.__annotations__ |= {name: _option_type(hint) | None for name, hint in hints.items()}
        for item in fields(config):
            help, hint = helps[item.name], hints[item.name]
            if get_origin(hint) is Literal:
                *others, last = get_args(hint)
                help = f"{help}: {', '.join(others)} or {last}."
            default = False if item.default in (None, ()) else str(item.default)
            setattr(cls, item.name, param(None, TRAINING, help, show_default=default))
        return cls

    return add


def _option_type(hint: Any) -> Any:
    """Return int or float for numbers; other values are text, which ``configure`` checks."""
    kinds = () if get_origin(hint) is tuple else (hint, *get_args(hint))
    return next((kind for kind in (int, float) if kind in kinds), str)


@dataclass(frozen=True)
@_add_options(TrainConfig, TRAIN_HELP)
class TrainParams:
    """Training settings; fields and defaults are those of ``TrainConfig``."""

    recipe: str | None = param(
        None,
        TRAINING,
        "Settings of a paper (see: spurless ls recipes); flags override them.",
        show_default=False,
    )

    @property
    def options(self) -> dict[str, Any]:
        """Return the settings that were given."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class DeviceParams:
    """Device that evaluates a model."""

    device: Device = "auto"
    workers: int = param(0, COMPUTE, "Processes that load streamed data.", min=0)
    threads: int = param(
        1, COMPUTE, "CPU threads per run. Another number rounds differently, so it is another run.", min=1
    )

    def compute(self, track: str | None = None) -> Compute:
        """Return the settings as the library takes them."""
        from spurless.train.run import Compute

        return Compute(**vars(self), track=track)


@dataclass(frozen=True)
class ComputeParams(DeviceParams):
    """Device and precision of training."""

    precision: Precision = "auto"


@dataclass(frozen=True)
class MultiDeviceParams(ComputeParams):
    """Devices and precision of training."""

    devices: int = param(1, COMPUTE, "Number of devices that train one model.", min=1)
    strategy: str = param("auto", COMPUTE, "Strategy of several devices, such as ddp.")


@dataclass(frozen=True)
class ExecutorParams:
    """Executor of many runs and its resources."""

    executor: str = param(
        "auto", COMPUTE, "Executor: auto, local, processes, ray, or concurrent (many small trainings at once on a GPU)."
    )
    jobs: int | None = param(
        None, COMPUTE, "Number of parallel processes.", min=1, show_default="all cores, with --executor processes"
    )
    together: int = param(16, COMPUTE, "Number of trainings that share a GPU, with --executor concurrent.", min=1)
    address: str | None = param(
        None, COMPUTE, "Running Ray cluster, as HOST:PORT or auto.", show_default="start one for these runs"
    )
    gpus_per_run: float | None = param(
        None, COMPUTE, "GPUs per run, with --executor ray.", min=0, show_default="0.25 if there are any"
    )
    cpus_per_run: float = param(1.0, COMPUTE, "CPUs per run, with --executor ray.", min=0)

    def resources(self, compute: Compute) -> Resources:
        """Return the settings as the library takes them."""
        from spurless.bench.executors import Resources

        return Resources(compute, **{key: value for key, value in vars(self).items() if key != "executor"})


@dataclass(frozen=True)
class SelectiveParams:
    """Selective prediction: coverages and confidence score."""

    coverage: str | None = param(
        None,
        SELECTIVE,
        "Also report the error at these coverages (fractions of examples that are predicted), as 1,0.9,0.8.",
        metavar="FRACTIONS",
    )
    score: str = param("auto", SELECTIVE, "Confidence score: softmax, product, masktune-authors or selector.")

    @property
    def coverages(self) -> tuple[float, ...]:
        """Return the coverages."""
        return parse_coverages(self.coverage)

    def check_score(self) -> None:
        """Raise if --score is given without --coverage."""
        if self.score != "auto" and self.coverage is None:
            raise InputError("--score needs --coverage", hint="Pass --coverage 1,0.9,0.8 too.")


def check_split_name(name: str, *more: str) -> None:
    """Raise if there is no split of this name."""
    if name not in (*SPLITS, *more):
        raise UnknownNameError("split", name, (*SPLITS, *more))


def resolve_track(track: str | None, out: Path) -> str | None:
    """Check --track before data are loaded, and add the default folder under ``out``."""
    if track is None:
        return None
    from spurless.train.tracking import resolve_tracker

    return resolve_tracker(track, out / "track")


def parse_coverages(text: str | None) -> tuple[float, ...]:
    """Parse the fractions of --coverage, without duplicates.

    Example:
        >>> parse_coverages("1, 0.9,0.8"), parse_coverages(None)
        ((1.0, 0.9, 0.8), ())
    """
    if text is None:
        return ()
    return tuple(dict.fromkeys(_parse_coverage(word.strip()) for word in text.split(",")))


def _parse_coverage(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise InputError(f"--coverage {word!r} is not a number", expected="fractions such as 1,0.9,0.8") from None
    if 1 < value <= 100:
        raise InputError(f"--coverage takes fractions, but {word} is a percentage", hint=f"Write {value / 100:g}.")
    if not 0 < value <= 1:
        raise InputError(f"--coverage {word} is out of range", expected="above 0 and at most 1")
    return value
