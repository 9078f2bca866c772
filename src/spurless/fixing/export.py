"""Export: a model as ONNX, for programs that have no torch; what is written is checked before it is kept."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spurless.core.errors import BadInput, MissingExtra, first_line
from spurless.core.files import replace_file
from spurless.models.asking import asking
from spurless.models.classifier import Classifier, Input, evaluating

NEEDED = ("onnx", "onnxscript")
CLOSE = 1e-3
"""By how much logits may differ, in parts of the largest; rounding alone gives a hundredth of that."""


def check_onnx() -> None:
    """Refuse before the first hour, not after, where a package is missing.

    Raises:
        MissingExtra: it names the package and how to install it.
    """
    for package in NEEDED:
        if find_spec(package) is None:
            raise MissingExtra(package, "onnx", "Writing ONNX")


def write_onnx(path: Path | str, model: Classifier, example: Input) -> Path:
    """Write a model as ONNX and return its path; the file appears whole, checked and in one piece, or not at all.

    The input is what the model takes: a batch of any size, after the transform of the data
    (:meth:`Grouped.example` makes one). It is called ``x``; of texts, every tensor has its own name. The output is
    called ``logits``.

    Args:
        path: of the file.
        model: is left as it was.
        example: a few inputs, by which the file is checked.

    Raises:
        MissingExtra: a package is missing.
        BadInput: the model cannot be written, or the file says something else than the model.
    """
    check_onnx()
    path, given = Path(path), example if isinstance(example, dict) else {"x": example}
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with evaluating(model.to("cpu")), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own, about itself
            with asking(model, example):
                truth = model(example).double()
            replace_file(path, lambda scratch: _export(scratch, model, example, given, truth))
    finally:
        model.to(device)
    return path


def _export(scratch: Path, model: Classifier, example: Input, given: dict[str, Tensor], truth: Tensor) -> None:
    batch = torch.export.Dim("batch", min=1)
    shapes = {name: {0: batch} for name in given}
    try:
        torch.onnx.export(
            model,
            (example, {}),  # a dict at the end would be taken for keywords
            scratch,
            input_names=list(given),
            output_names=["logits"],
            dynamo=True,
            external_data=False,
            dynamic_shapes=(shapes,) if isinstance(example, dict) else ({0: batch},),
            verbose=False,
        )
    except Exception as error:  # of many kinds: the exporter compiles whatever the model is made of
        raise BadInput(
            f"the model {model.name!r} cannot be written as ONNX: {first_line(error)}",
            do="Leave --onnx out; the safetensors file has the weights.",
        ) from error
    said = torch.as_tensor(_run(scratch, given).astype("float32")).double()  # torch does not know numpy's bfloat16
    if said.shape != truth.shape or float((said - truth).abs().max()) > CLOSE * max(1.0, float(truth.abs().max())):
        raise BadInput(f"the model {model.name!r} as ONNX says something else than the model", do="Leave --onnx out.")


def _run(path: Path, given: dict[str, Tensor]) -> Any:
    """Return the logits of a file, by onnxruntime where it is installed, else by the evaluator of onnx."""
    feed = {name: value.numpy() for name, value in given.items()}
    if find_spec("onnxruntime") is not None:
        session = import_module("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session.run(None, feed)[0]
    return import_module("onnx.reference").ReferenceEvaluator(str(path)).run(None, feed)[0]
