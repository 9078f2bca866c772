"""Call every command and every public function with hostile arguments: each call returns or raises SpurlessError.

A case is a function of its number and the seed. Case n is about one parameter: all options of all commands, and all
parameters of all public functions, take turns, so that a new option or function is covered without a change here. The
parameter gets a hostile value or a valid one, the others are valid, and sometimes one more is hostile. Options that
only set an amount of work (``WORK``) get no large number: the run would be long, and rightly so.

Cases run in separate processes with limited memory, without network. A case fails if there is a traceback, if a process
dies, or after ``TIME_LIMIT`` seconds of processor time.

Run one case again, or many, and record what was tried:
    python benchmarks/faults.py --case 17
    python benchmarks/faults.py --cases 20000 > benchmarks/records/faults.json
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import inspect
import io
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib import import_module
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from PIL import Image
from torch import nn

import spurless as sp
from spurless.core.errors import SpurlessError

TIME_LIMIT = 20.0  # of processor time
WALL_LIMIT = 60.0  # for a case that waits; more, because the machine may be busy with other work
STARTUP_SECONDS = 120.0  # until a process has imported everything and has written its files
MEMORY = 12 * 2**30  # of address space, most of which torch reserves without using it
WORK = re.compile(
    "epochs|steps|seeds|permutations|rounds|refits|iterations|batches|per_|count|peers|candidates|pictured|resamples"
    "|n_train|n_val|n_test|jobs|together|workers|threads|devices|every|splits|folds|budget|accumulate|bootstrap|draws"
)
ENDINGS = {0: "completed", 1: "completed", 2: "refused"}
"""Exit statuses; 1 is that of a claim or a plan that did not hold, and needs a line too."""

# ---------------------------------------------------------------------------------------------- values

TEXTS = (
    "", " ", "\n", "a\nb", "\x1b[31mred", "\u202egnp.exe", "\udcff", "é", "a" * 5000, "../x", "=", "a=b=c",
    "[red]x[/red]", "{x}", "{{7*7}}", "%s%n", "'", '"', "<script>alert(1)</script>", "-", "--", "nan", "none",
    "true", "0", "a,b", ",", "*", "=1+1", "CON", "x:y", ":", "hf:", "timm:", "timm:x", "torchvision:x",
    "torchvision:", "hf:missing", "x.py:make", "missing.module:make", "label", "y", "place", "x1", "val", "test",
    "erm", "planted", "mlp",
)  # fmt: skip
NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "-1",
    "-1e9",
    "0",
    "1",
    "2",
    "0.5",
    "1e-320",
    "",
    "x",
    "0x10",
    "1_0",
    "\u0663",
    " 7 ",
    "1e400",
)
LARGE = ("1000000000000000000", "99999999999999999999999", "1e308", "4294967296", "2147483648")
PATHS = (
    "missing", "missing/missing", ".", "..", "", "pictures", "table.csv", "texts.csv", "own.npz", "empty",
    "cut.safetensors", "cut.npz", "text.safetensors", "zip.safetensors", "huge.safetensors", "records.jsonl",
    "bad.jsonl", "plan.toml", "audit.json", "w.safetensors", "images.safetensors", "fifo", "loop", "none",
    "/dev/null", "/dev/full", "a" * 300, "new\nline", "\udcff", "pickle.npz", "masks.npy", "w.safetensors/x",
    "config.toml", "binary.csv", "ragged.csv", "~x", "new",
)  # fmt: skip
PROCESSES = ("nan", "-1", "0", "1", "x", "")
CHOICES = {
    "device": ("auto", "cpu", "cuda", "cuda:9", "meta", "mps", "cpu:1", "cuda:-1", "cuda:x"),
    "precision": ("auto", "bf16-mixed", "16-mixed", "64-true", "transformer-engine"),
    "strategy": ("auto", "fsdp", "deepspeed", "ddp"),
    "executor": ("auto", "local", "concurrent"),
    "score": ("auto", "softmax", "product", "masktune-authors", "selector"),
    "coverage": ("1", "1,0.9", "0", "nan", "1e-300", "50", "-1", "1,1,1"),
    "select": ("last", "val-average", "val-worst-group", "val-worst-class"),
    "part": ("train", "val", "test", "all"),
    "track": ("csv", "csv:missing", "tensorboard", "mlflow", "wandb", "csv:/dev/full", "csv:"),
    "how": ("auto", "gradcam", "xgradcam", "attribution"),
    "over": (
        "lr=0.1",
        "lr=nan",
        "lr=",
        "lr",
        "batch_size=0,1",
        "x=1",
        "data.n_train=0",
        "method.q=1",
        "steps=1,2",
        "lr=0.1,0.1",
    ),
    "decay_at": ("1", "0", "-1", "2,1", "nan", "1,1"),
    "what": ("methods", "datasets", "models", "audits", "metrics", "criteria", "claims"),
    "only": ("worst-class", "suspects", "tokens", "transplants", "group-gap", "hidden-regions", "swapped-backgrounds"),
    "claim": ("theory/planted-erm", "theory", "/"),
    "try_": ("all", "dfr", "erm,dfr", "thorough"),
    "study": ("missing", "study"),
    "train": ("steps=1", "lr=nan", "batch_size=0", "x=1"),
    "train_option": ("steps=1", "lr=nan", "batch_size=0", "x=1"),
    "drop": ("0", "0.5", "1", "2"),
}
"""Names that some options know, in addition to the values of their type."""

PLANTED = "--data planted -D n_train=40 -D n_val=24 -D n_test=24"
TABLE = "--data table.csv --label y --attribute place --features x1,x2"
WORDS = "--data texts.csv --label y --text text -D tokenizer=words"
TRAIN = "--steps 2 --batch-size 16 --device cpu --quiet"
BASES: dict[str, tuple[str, ...]] = {
    "demo": ("--seeds 1 --quiet",),
    "fit": (
        f"erm {PLANTED} --model mlp -O width=4 {TRAIN}",
        f"erm --data pictures --model linear {TRAIN}",
        f"erm {TABLE} --model mlp -O width=4 {TRAIN}",
        f"erm {WORDS} --model token-mean {TRAIN}",
    ),
    "sweep": (f"--over lr=0.1 {PLANTED} --model mlp -O width=4 --seeds 1 --executor local {TRAIN}",),
    "bench": ("plan.toml --executor local --device cpu --quiet",),
    "eval": (f"w.safetensors {PLANTED} --device cpu", "images.safetensors --data pictures --device cpu"),
    "audit": (
        f"w.safetensors {PLANTED} --device cpu --permutations 9 --quiet",
        "images.safetensors --data pictures --device cpu --permutations 9 --quiet",
    ),
    "fix": (f"w.safetensors {PLANTED} --device cpu --method class-resample --train steps=2 --quiet",),
    "explain": ("images.safetensors --data pictures --device cpu --count 2 --quiet",),
    "compare": ("audit.json audit.json",),
    "card": ("audit.json", "audit.json --brief"),
    "doctor": ("",),
    "report": ("records.jsonl", "records.jsonl --audit audit.json"),
    "reproduce": ("theory/planted-erm --seeds 1 --device cpu --quiet",),
    "ls": ("methods",),
    "data prepare": ("planted --quiet", "waterbirds --root . --quiet"),
    "data check": ("planted --quiet", "table.csv --label y --quiet", "pictures --quiet"),
    "data describe": ("planted --quiet", "table.csv --label y --quiet", "pictures --quiet"),
    "data show": ("pictures --quiet", "table.csv --label y --quiet"),
}
"""Valid command lines, as arguments and options; a command that is missing here gets only hostile values."""

OBJECTS = re.split(
    "; |\n",
    """\
None; True; -1; 0; 1; 3; 10**30; 0.5; float('nan'); float('inf'); ''; 'x'; '\\ud800'; '\\x00'; 'a'*5000; b'x'; []
[None]; ['a','a']; (); {}; {'x':1}; {1:2}; object(); set(); range(3); sp; len; Path('missing'); Path('.')
Path('w.safetensors'); 'empty'; '/dev/null'; torch.zeros(0); torch.zeros(24,0); torch.tensor(1.)
torch.full((24,2),float('nan')); torch.full((24,2),float('inf')); torch.empty(24,2,device='meta')
torch.empty(24,device='meta',dtype=torch.long); torch.zeros(2,24).T; torch.zeros(24,dtype=torch.long)
torch.zeros(24,2,dtype=torch.complex64); torch.full((24,),-7); torch.full((24,),2**62); torch.arange(24)
torch.ones(24,dtype=torch.bool); torch.zeros(24,3,8,8); torch.zeros(24,3,8,8,dtype=torch.uint8)
torch.zeros(24,2,requires_grad=True); torch.zeros(5,2); torch.zeros(3,2).to_sparse()
np.array(['a',None],dtype=object); np.zeros((24,2),dtype='float16'); np.arange(24)%2; nn.Linear(2,2)
nn.Linear(7,3); nn.Identity(); nn.Linear(2,2,device='meta'); nn.Sequential(); torch.device('cpu')
torch.device('meta'); model(); data(); data().val; image_model(); image_data(); image_data().val; text_data()
text_data().val; record(); audited(); ['a','b']*12; ['\\ud800']*24; ['']*24; sp.TrainConfig(steps=1)
sp.Compute('cpu'); [record()]; fitted(); sp.Groups(('a','b'))""",
)
"""Values of arguments, as expressions."""
STARRED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
SHORTEN = ("train", "compute", "permutations", "input_shape", "n_classes", "tries", "folder")
"""Arguments that every call gets, so that it is short."""
VALID = dict(
    line.split(": ", 1)
    for line in """\
model: model();model();nn.Linear(2,2);image_model()
module: nn.Linear(2,2);nn.Sequential(nn.Linear(2,3),nn.ReLU(),nn.Linear(3,2))
data: data();data();image_data()
splits: data()
split: data().val;image_data().val
dataset: torch.utils.data.TensorDataset(torch.zeros(24,2),torch.arange(24)%2)
name_or_dataset: 'missing'
x: torch.randn(24,2);torch.zeros(24,3,8,8,dtype=torch.uint8)
y: torch.arange(24)%2
a: torch.arange(24)//2%2
labels: torch.arange(24)%2;('a','b')
label: 'y'
attributes: None
texts: ['good day','bad day']*12
path: 'new';'table.csv';'own.npz';'w.safetensors'
root: 'pictures'
method: 'erm';'class-resample'
name: 'mlp';'planted'
train: sp.TrainConfig(steps=1,batch_size=8)
compute: sp.Compute('cpu')
permutations: 9
input_shape: (2,)
n_classes: 2
runs: [record()];[fitted()]
record: record()
before: record()
after: record()
audit: audited()
audits: [audited()]
tries: ('class-resample',)
layer: None
logits: torch.randn(24,2)
predicted: torch.arange(24)%2
correct: torch.ones(24,dtype=torch.bool)
confidence: torch.rand(24)
groups: sp.Groups(('a','b'),('c','d'))
g: torch.arange(24)%4
features: torch.randn(24,3)
models: (model(),)
backbone: nn.Identity()
head: nn.Linear(2,2)
val: data().val
test: data().test
counts: torch.tensor([5,7])
values: [0.1,0.2,0.4]
first: [0.1,0.2,0.4]
second: [0.2,0.3,0.4]
example: torch.zeros(2,2)
explainer: 'gradcam'
images: image_data().val.x
how: 'gradcam'
folder: 'out'
table: table()
probabilities: torch.softmax(torch.randn(24,2),1)
split_name: 'val'
target: torch.arange(24)%2
""".splitlines()
)
"""Valid values by the name of a parameter; expressions, so that a case can be printed and run again."""


# ---------------------------------------------------------------------------------------------- what there is to call


@cache
def commands() -> dict[str, list[Any]]:
    """Return the parameters of every command, by its words."""
    found: dict[str, list[Any]] = {}

    def visit(command: Any, words: tuple[str, ...]) -> None:
        for name, child in getattr(command, "commands", {}).items():
            visit(child, (*words, name))
        if not hasattr(command, "commands"):
            found[" ".join(words)] = command.params

    from spurless.cli import app

    visit(typer.main.get_command(app), ())
    return found


@cache
def functions() -> dict[str, tuple[Callable[..., Any], list[str]]]:
    """Return every public function and class, with the names of its parameters."""
    exported = {f"sp.{name}": getattr(sp, name) for name in sp.__all__}
    for package in ("data", "models", "metrics", "explain", "reporting"):
        module = import_module(f"spurless.{package}")
        exported |= {
            f"spurless.{package}.{name}": getattr(module, name) for name in module.__all__ if name not in sp.__all__
        }
    found: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for path, thing in exported.items():
        is_error = inspect.isclass(thing) and issubclass(thing, Exception | Warning)
        if (
            (inspect.isfunction(thing) or inspect.isclass(thing))
            and not is_error
            and not getattr(thing, "_is_protocol", False)
        ):
            found[path] = (thing, [name for name in inspect.signature(thing).parameters if name != "self"])
    return found


@cache
def subjects() -> list[tuple[str, str, str]]:
    """Return (kind, command or function, parameter): commands and functions in turn, each in a fixed random order."""
    options = [("command", name, param.name) for name, params in commands().items() for param in params]
    arguments = [("function", path, name) for path, (_, names) in functions().items() for name in names or [""]]
    random.Random(0).shuffle(options)
    random.Random(0).shuffle(arguments)
    longest = max(len(options), len(arguments))
    return [row for i in range(longest) for row in (options[i % len(options)], arguments[i % len(arguments)])]


# ---------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """One call; ``call`` is the words of a command line, or an expression."""

    number: int
    kind: str
    subject: str
    parameter: str
    call: Any


def make_case(number: int, seed: int = 0) -> Case:
    """Return a case; the same numbers give the same case."""
    kind, subject, parameter = subjects()[number % len(subjects())]
    rng = random.Random(f"{seed} {number}")
    make = _command_line if kind == "command" else _expression
    return Case(number, kind, subject, parameter, make(subject, parameter, rng))


def _command_line(name: str, parameter: str, rng: random.Random) -> list[str]:
    params = {param.name: param for param in commands()[name]}
    base = rng.choice(BASES.get(name, ("",))).split()
    options = [*dropwhile(lambda word: word[0] != "-", base)]
    arguments = base[: len(base) - len(options)]
    if name == "fit" and rng.random() < 0.5:
        arguments, options = _another_method(options, rng)
    changed = [parameter, *rng.sample(sorted(params), rng.choice((0, 0, 0, 1, 2)))]
    words = list(options)
    for param in (params[key] for key in dict.fromkeys(changed)):
        if param.param_type_name == "argument":
            arguments = [
                _option_value(param, rng, words) for _ in range(rng.choice((1, 1, 2)) if param.nargs < 0 else 1)
            ]
        elif param.is_flag:
            words.append(param.opts[0])
        else:
            words += [rng.choice(param.opts), _option_value(param, rng, [*arguments, *words])]
    return [*name.split(), *arguments, *words]


def _another_method(options: list[str], rng: random.Random) -> tuple[list[str], list[str]]:
    from spurless.methods import METHODS

    method = rng.choice(sorted(METHODS))
    config = next(iter(METHODS[method].presets.values()))
    short = [
        f"{key}=1"
        for key, value in vars(config).items()
        if WORK.search(key) and type(value) is int and "split" not in key
    ]
    short += ["folds=2"] if hasattr(config, "folds") else []
    return [method], [*options, *(word for pair in short for word in ("-M", pair))]


def _option_value(param: Any, rng: random.Random, words: list[str]) -> str:
    hint = str(param.type_descriptor.annotation)
    if param.name in ("devices", "jobs", "workers"):
        return rng.choice(PROCESSES)
    if param.name in CHOICES and rng.random() < 0.6:
        return rng.choice(CHOICES[param.name])
    if param.name.endswith("_option") and rng.random() < 0.9:
        key = rng.choice([*_option_names(param.name, words), "x"])
        return f"{key}={_number(key, rng) if rng.random() < 0.6 else rng.choice((*TEXTS, *PATHS))}"
    if "int" in hint or "float" in hint:
        return _number(param.name, rng)
    return rng.choice(PATHS if "Path" in hint or rng.random() < 0.4 else TEXTS)


def _number(name: str, rng: random.Random) -> str:
    return rng.choice(NUMBERS if WORK.search(name) else NUMBERS + LARGE)


def _option_names(name: str, words: list[str]) -> list[str]:
    """Return the fields of the configuration that a KEY=VALUE option is about."""
    from spurless.data import DATASETS
    from spurless.methods import METHODS
    from spurless.models import MODELS

    tables: dict[str, Any] = {"data_option": DATASETS, "model_option": MODELS, "method_option": METHODS}
    if name not in tables:
        return [item.name for item in fields(sp.TrainConfig)]
    row = next((tables[name][word] for word in words if word in tables[name]), None)
    if row is None:
        return ["size", "tokenizer", "max_length", "delimiter", "head"]
    return list(vars(next(iter(row.presets.values())) if hasattr(row, "presets") else row.config()))


def _expression(path: str, parameter: str, rng: random.Random) -> str:
    function, names = functions()[path]
    parameters = inspect.signature(function).parameters
    words = []
    for name in names:
        param = parameters[name]
        if name == parameter or (rng.random() < 0.05 and param.default is param.empty):
            value = rng.choice((_hostile(name, rng), _hostile(name, rng), _valid(name, rng)))
        elif name in SHORTEN or (param.default is param.empty and param.kind not in STARRED):
            value = _valid(name, rng)
        else:
            continue
        prefix = "**" if param.kind is param.VAR_KEYWORD else "*" if param.kind is param.VAR_POSITIONAL else ""
        if prefix == "**":
            value = f"{{{rng.choice(('n_train', 'x', 'width', 'depth', 'q', 'alpha'))!r}: {value}}}"
        elif prefix == "*":
            value = f"[{value}]"
        words.append(
            f"{prefix}{value}" if prefix else f"{name}={value}" if param.kind != param.POSITIONAL_ONLY else value
        )
    return f"{path}({', '.join(words)})"


def _hostile(name: str, rng: random.Random) -> str:
    if name in ("progress", "transform", "augment", "how"):  # a function of the caller may raise what it likes
        return rng.choice(OBJECTS[: OBJECTS.index("object()")])
    return rng.choice([value for value in OBJECTS if not (WORK.search(name) and value == "10**30")])


def _valid(name: str, rng: random.Random) -> str:
    return rng.choice(VALID[name].split(";")) if name in VALID else _hostile(name, rng)


# ---------------------------------------------------------------------------------------------- files and objects


def write_files(folder: Path) -> None:
    """Write the files that cases name: good ones, and cut, empty and foreign ones."""
    rows = [
        f"{i % 7},{i % 2 * 2 - 1},{'cat' if i % 2 else 'dog'},{'in' if i % 3 else 'out'},{'train' if i % 3 else 'val'}"
        for i in range(60)
    ]
    (folder / "table.csv").write_text("\n".join(["x1,x2,y,place,split", *rows]))
    (folder / "texts.csv").write_text(
        "\n".join(["text,y", *(f"a {'good' if i % 2 else 'bad'} day,{i % 2}" for i in range(40))])
    )
    (folder / "ragged.csv").write_text("y,x1\na\n\nb,1,2,3\n\x00,\n")
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    x = np.arange(240, dtype="float32").reshape(60, 4)
    np.savez(folder / "own.npz", x=x, y=np.arange(60) % 2, a=np.arange(60) % 3)
    np.savez(folder / "pickle.npz", x=x, y=np.array([None] * 60, dtype=object))
    np.save(folder / "masks.npy", np.zeros((5, 8, 8), bool))
    for label, shade in (("dark", 40), ("light", 200)):
        (folder / "pictures" / label).mkdir(parents=True)
        for i in range(12):
            Image.new("RGB", (8, 8), (shade + i, shade, i)).save(folder / "pictures" / label / f"{i}.png")
    sp.save_weights(folder / "w.safetensors", model(), seed=0)
    images = sp.build("pooled-cnn", input_shape=(3, 8, 8), n_classes=2, channels=(4, 4))
    sp.save_weights(folder / "images.safetensors", images)
    for name in ("w.safetensors", "own.npz"):
        content = (folder / name).read_bytes()
        (folder / f"cut{Path(name).suffix}").write_bytes(content[: len(content) // 2])
    (folder / "empty").touch()
    (folder / "none").mkdir()
    (folder / "text.safetensors").write_text("weights")
    (folder / "huge.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    torch.save({"weight": torch.zeros(2)}, folder / "zip.safetensors")
    record_line = json.dumps(asdict(record()), default=str)
    (folder / "records.jsonl").write_text(f"{record_line}\n" * 2)
    (folder / "bad.jsonl").write_text(f'{record_line[:40]}\n[]\n{{"schema": 1}}\n')
    (folder / "plan.toml").write_text(PLAN)
    (folder / "config.toml").write_text("[train]\nsteps = 2\n[model]\nwidth = 4\n")
    audit = audited()
    import_module("spurless.reporting").write_json(folder / "audit.json", audit)
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")


PLAN = """
methods = ["erm", "class-resample"]
datasets = ["planted"]
model = "mlp"
model-options = { width = 4 }
train = { steps = 2 }
seeds = 1
[dataset.planted]
options = { n_train = 40, n_val = 24, n_test = 24 }
"""


def model() -> sp.Classifier:
    return sp.build("mlp", input_shape=(2,), n_classes=2, width=4)


def image_model() -> sp.Classifier:
    return sp.wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)))


@cache
def data() -> sp.Splits:
    return sp.load("planted", n_train=40, n_val=24, n_test=24)


@cache
def image_data() -> sp.Splits:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (72, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return sp.from_tensors(x, torch.arange(72) % 2, torch.arange(72) // 2 % 2, split=["train", "val", "test"] * 24)


@cache
def text_data() -> sp.Splits:
    texts = [f"a {'good' if i % 2 else 'bad'} day {i % 5}" for i in range(72)]
    return sp.from_texts(texts, [i % 2 for i in range(72)], split=["train", "val", "test"] * 24, tokenizer="words")


@cache
def fitted() -> sp.Fitted:
    return sp.fit("erm", model(), data(), train={"steps": 1, "batch_size": 8}, compute=sp.Compute("cpu"))


def record() -> sp.Record:
    return fitted().record


@cache
def audited() -> Any:
    return sp.audit(model(), data(), permutations=9, compute=sp.Compute("cpu"))


def table() -> Any:
    return sp.evaluate(model(), data().val)


# ---------------------------------------------------------------------------------------------- run one case


@dataclass(frozen=True)
class Outcome:
    """How a case ended: completed, refused, traceback, hang or crash; ``where`` is the defect in a line."""

    number: int
    ending: str
    where: str = ""
    seconds: float = 0.0


class TimeUpError(BaseException):
    """The time limit of a case; not an Exception, which the package may catch."""


def handle_alarms() -> None:
    """Raise TimeUpError when a time limit is reached."""

    def stop(*_: Any) -> None:
        raise TimeUpError

    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGPROF, stop)


def run_case(case: Case) -> Outcome:
    """Run a case in the current folder."""
    begin = time.perf_counter()
    signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT)
    signal.setitimer(signal.ITIMER_REAL, WALL_LIMIT)
    faulthandler.dump_traceback_later(WALL_LIMIT + 5, exit=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ending, where = _run_command(case.call) if case.kind == "command" else _run_expression(case.call)
    except TimeUpError as error:
        ending, where = "hang", _frame(error)
    except BaseException as error:
        ending, where = "traceback", f"{type(error).__name__}: {str(error)[:150]!r} {_frame(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    return Outcome(case.number, ending, where, round(time.perf_counter() - begin, 3))


def _run_expression(text: str) -> tuple[str, str]:
    try:
        eval(text, globals() | {"spurless": sp})  # an expression of ``OBJECTS`` and ``VALID``
    except SpurlessError as error:
        return "refused", _wrong_message(str(error))
    return "completed", ""


def _run_command(words: list[str]) -> tuple[str, str]:
    from spurless.cli import main

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    sys.argv = ["spurless", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as error:
            status = error.code
    lines = [
        line for line in err.getvalue().splitlines() if line.startswith("spurless: ") and ": warning: " not in line
    ]
    if status == 2 and len(lines) != 1:
        return "traceback", f"status 2 with {len(lines)} lines: {err.getvalue()[-300:]!r}"
    if status not in (0, 1, 2) or "Traceback" in err.getvalue():
        return "traceback", f"status {status}: {err.getvalue()[-300:]!r}"
    return ENDINGS[int(status or 0)], ""


def _wrong_message(text: str) -> str:
    return "" if text.strip() else "empty message"


def _frame(error: BaseException) -> str:
    """Return the innermost frame of the package, file and line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/spurless/" in frame.filename]
    return f"{frames[-1].filename.rpartition('/spurless/')[2]}:{frames[-1].lineno}" if frames else ""


# ---------------------------------------------------------------------------------------------- worker and runner


def work(seed: int, numbers: list[int]) -> None:
    """Run cases in the current folder, and print a line before and after each; this limits the whole process."""
    results = os.fdopen(os.dup(1), "w", buffering=1)
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(devnull, stream)
    torch.set_num_threads(1)
    root = Path.cwd()
    os.environ |= {
        "SPURLESS_CACHE": str(root / "cache"),
        "SPURLESS_DATA": str(root / "data"),
        "HOME": str(root),
        "COLUMNS": "80",
    }
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "offline", "NO_COLOR": "1"}
    _restrict()
    (root / "files").mkdir()
    write_files(root / "files")
    copied: list[Any] | None = None
    for number in numbers:
        if _list_files(root / "case") != copied:  # mostly they are the same, because cases are refused
            shutil.rmtree(root / "case", ignore_errors=True)
            shutil.copytree(root / "files", root / "case", symlinks=True, copy_function=_copy)
            copied = _list_files(root / "case")
        os.chdir(root / "case")
        case = make_case(number, seed)
        results.write(json.dumps([number]) + "\n")
        results.write(json.dumps(asdict(run_case(case))) + "\n")
        os.chdir(root)


def _list_files(folder: Path) -> list[Any]:
    """Return the path, inode, size and time of all files in a folder."""
    facts = ((path, path.lstat()) for path in sorted(folder.rglob("*")))
    return [(path, fact.st_ino, fact.st_size, fact.st_mtime_ns) for path, fact in facts]


def _copy(source: str, target: str) -> None:
    os.mkfifo(target) if Path(source).is_fifo() else shutil.copy(source, target)


def _restrict() -> None:
    """Limit memory, close the network, shorten what has a fixed length, and open no browser."""

    def no_network(*_: Any) -> None:
        raise OSError(101, "Network is unreachable")

    handle_alarms()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    socket.socket.connect = no_network  # type: ignore[method-assign]
    os.environ["BROWSER"] = "true"
    from spurless.bench.claims import CLAIMS
    from spurless.cli.demo import METHODS, TRAIN

    TRAIN["steps"] = 2
    sp.audit.__kwdefaults__["permutations"] = 9  # type: ignore[index]
    for name in set(METHODS) - {"erm", "dfr"}:
        del METHODS[name]
    claim = CLAIMS["theory/planted-erm"]
    experiments: Any = claim.experiments
    for name, experiment in claim.experiments.items():
        experiments[name] = replace(experiment, train={"steps": 2})


def worker_command(seed: int) -> list[str]:
    """Return the command line of a process that runs the cases on its standard input."""
    return [sys.executable, str(Path(__file__).resolve()), "--seed", str(seed), "--worker"]


def run_cases(seed: int, numbers: list[int]) -> Iterator[Outcome]:
    """Run cases in a separate process; start another one after a crash or a hang, which count for their case."""
    while numbers:
        started: int | None = None
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as given:
            given.write(json.dumps(numbers))
            given.seek(0)
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            command, pipe = worker_command(seed), subprocess.PIPE
            process = subprocess.Popen(command, stdin=given, stdout=pipe, env=environment, cwd=folder)
            try:
                for line in _lines(process):
                    row = json.loads(line)
                    if isinstance(row, list):
                        started, numbers = row[0], numbers[1:]
                    else:
                        started = None
                        yield Outcome(**row)
            finally:
                process.kill()
                status = process.wait()
                if process.stdout is not None:
                    process.stdout.close()
        if started is not None:
            yield Outcome(started, "hang" if status == 1 else "crash", f"status {status}", TIME_LIMIT)
        elif numbers:
            raise RuntimeError(f"the process ended with status {status} before case {numbers[0]} started")


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield the lines of a process until it ends or is silent for too long."""
    assert process.stdout is not None
    limit = STARTUP_SECONDS
    while select.select([process.stdout], [], [], limit)[0] and (line := process.stdout.readline()):
        yield line
        limit = WALL_LIMIT + 15


def describe(outcome: Outcome, seed: int) -> str:
    """Return a failed case in a few lines, with the command that runs it again."""
    case = make_case(outcome.number, seed)
    call = f"spurless {' '.join(map(repr, case.call))}" if case.kind == "command" else case.call
    again = f"python benchmarks/faults.py --seed {seed} --case {outcome.number}"
    return f"{outcome.ending}: {outcome.where}\n  {call}\n  {again}"


def summarize(outcomes: list[Outcome], seed: int) -> dict[str, Any]:
    """Return what was tried and how it ended, by command and function, and every failure."""
    rows: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        rows.setdefault(make_case(outcome.number, seed).subject, Counter())[outcome.ending] += 1
    failures = [outcome for outcome in outcomes if outcome.ending not in ("completed", "refused")]
    return {
        "cases": len(outcomes),
        "seed": seed,
        "results": {name: dict(row) for name, row in sorted(rows.items())},
        "failures": [{"case": f.number, "ending": f.ending, "where": f.where} for f in failures],
        "longest": max((outcome.seconds for outcome in outcomes), default=0.0),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
    }


def list_failures(seed: int, count: int) -> list[str]:
    """Run cases, and return the description of every failure that is not a known defect."""
    outcomes = list(run_cases(seed, list(range(count))))
    assert len(outcomes) == count
    failed = [outcome for outcome in outcomes if outcome.ending not in ("completed", "refused")]
    return [describe(outcome, seed) for outcome in failed]


def main() -> None:
    """Run cases from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int)
    parser.add_argument("--minutes", type=float, default=600.0, help="start no case after this time")
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    if args.worker:
        work(args.seed, json.loads(sys.stdin.read()))
        return
    numbers = [args.case] if args.case is not None else list(range(args.first, args.first + args.cases))
    outcomes, begin = [], time.monotonic()
    for outcome in run_cases(args.seed, numbers):
        outcomes.append(outcome)
        if outcome.ending not in ("completed", "refused") or args.case is not None:
            sys.stderr.write(describe(outcome, args.seed) + "\n")
        if time.monotonic() - begin > 60 * args.minutes:
            break
    if args.case is None:
        from spurless.fitting.assess import describe_environment

        record = summarize(outcomes, args.seed) | describe_environment(torch.device("cpu"))
        sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
