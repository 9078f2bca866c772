"""Export models as ONNX; a written file is checked against the model before it is kept."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, MissingExtraError, first_line
from spurless.core.files import replace_file
from spurless.core.modules import Input, eval_mode
from spurless.models.classifier import Classifier, on_device
from spurless.models.input_errors import readable_forward_errors
from spurless.models.pruning.compact import compact_model

REQUIRED_PACKAGES = ("onnx", "onnxscript")
LOGIT_TOLERANCE = 1e-3
"""Maximum difference of the logits, relative to the largest; rounding alone gives a hundredth of it."""


def check_onnx_installed() -> None:
    """Raise if a package that the export needs is missing."""
    for package in REQUIRED_PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "Writing ONNX")


def write_onnx(path: Path | str, model: Classifier, example: Input, *, compact: bool = False) -> Path:
    """Write a model as ONNX and return the path; the file is complete and checked, or not written at all.

    The input is a batch of any size, as the model takes it, after the transform of the data (:meth:`Split.example`
    returns one). It is called ``x``; the tensors of texts keep their names. The output is called ``logits``.

    Args:
        path: file to write.
        model: it is not changed.
        example: a few inputs, for the shapes and the check.
        compact: whether to remove channels without effect first, see :func:`spurless.models.compact_model`.
    """
    check_onnx_installed()
    path, inputs = Path(path), example if isinstance(example, dict) else {"x": example}
    with on_device(model, "cpu"), eval_mode(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        with readable_forward_errors(model, example):
            logits = model(example).double()
        exported = compact_model(model, example).model if compact else model
        replace_file(path, lambda scratch: _export(scratch, exported.eval(), example, inputs, logits))
    return path


def _export(scratch: Path, model: nn.Module, example: Input, inputs: dict[str, Tensor], logits: Tensor) -> None:
    name = getattr(model, "name", type(model).__name__)
    batch = torch.export.Dim("batch", min=1)
    shapes = {key: {0: batch} for key in inputs}
    try:
        torch.onnx.export(
            model,
            (example, {}),  # a dict at the end would be used as keyword arguments
            scratch,
            input_names=list(inputs),
            output_names=["logits"],
            dynamo=True,
            external_data=False,
            dynamic_shapes=(shapes,) if isinstance(example, dict) else ({0: batch},),
            verbose=False,
        )
    except Exception as error:  # of many kinds: the exporter compiles the code of the model
        raise InputError(
            f"the model {name!r} cannot be exported as ONNX: {first_line(error)}",
            hint="Leave --onnx out, and use the safetensors file.",
        ) from error
    output = torch.as_tensor(_run(scratch, inputs).astype("float32")).double()  # torch cannot read numpy's bfloat16
    tolerance = LOGIT_TOLERANCE * max(1.0, float(logits.abs().max()))
    if output.shape != logits.shape or float((output - logits).abs().max()) > tolerance:
        raise InputError(f"the ONNX file of {name!r} gives other logits than the model", hint="Leave --onnx out.")


def _run(path: Path, inputs: dict[str, Tensor]) -> Any:
    """Return the logits of a file, by onnxruntime if it is installed, else by the reference evaluator of onnx."""
    feed = {name: value.numpy() for name, value in inputs.items()}
    if find_spec("onnxruntime") is not None:
        session = import_module("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session.run(None, feed)[0]
    return import_module("onnx.reference").ReferenceEvaluator(str(path)).run(None, feed)[0]
