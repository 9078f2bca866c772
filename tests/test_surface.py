"""The public surface: no name disappears unnoticed, and importing it costs nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spurless

SURFACE = [
    "load", "from_folder", "from_csv", "from_npz", "from_texts", "from_tensors",
    "from_dataset", "from_huggingface",
    "build", "wrap", "fit", "embed", "evaluate", "audit", "fix", "report", "save_weights", "load_weights",
    "Abstainer", "Classifier", "Compute", "Fitted", "Fixed", "Split", "Groups", "Record", "Splits",
    "SpurlessError", "SpurlessWarning", "TrainConfig",
]  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert sorted(spurless.__all__) == sorted(SURFACE)  # record changes in the changelog


@pytest.mark.parametrize("name", SURFACE)
def test_every_name_is_there_and_documented(name: str) -> None:
    assert getattr(spurless, name).__doc__


def test_the_names_for_type_checkers_are_the_names_at_run_time() -> None:
    tree = ast.parse(Path(spurless.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == spurless._MODULE_OF


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'spurless' has no attribute 'fitt'"):
        _ = spurless.fitt


@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy() -> None:
    packages = "import sys, spurless, spurless.data, spurless.models, spurless.explain, spurless.methods;"
    packages += "import spurless.fitting;"
    heavy = {"lightning", "torchvision", "sklearn", "scipy", "plotly", "typer", "transformers", "timm", "datasets"}
    heavy |= {"captum", "pytorch_grad_cam"}
    code = f"{packages} print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_bare_import_does_not_even_import_torch() -> None:
    code = "import sys, spurless; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_version_is_one() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'version = "{spurless.__version__}"' in text
