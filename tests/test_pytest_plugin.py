"""Tests of the pytest plugin: a model that follows a shortcut fails a test, and pages are kept if asked for."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest
import torch

import spurless as sp

@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    y, a = (torch.randint(2, (400,), generator=generator) for _ in range(2))
    x = torch.stack([2.0 * y - 1, 2.0 * a - 1], dim=1) + 0.1 * torch.randn(400, 2, generator=generator)
    return sp.Split(x, y, a, sp.Groups(("cow", "camel"), ("grass", "sand")))

def follow(column):
    net = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.zero_()
        net.weight[:, column] = torch.tensor([-1.0, 1.0])
    return sp.wrap(torch.nn.Sequential(torch.nn.Identity(), net))

def test_label(spurless, data):
    spurless.audit(follow(0), data, permutations=99).assert_clean(worst_group=0.8)

@pytest.mark.parametrize("name", ["a/b <c>"])
def test_attribute(spurless, data, name):
    spurless.audit(follow(1), data, permutations=99).assert_clean(worst_group=0.8)
"""


@pytest.mark.slow  # it imports torch in a new process
def test_a_model_that_follows_an_attribute_fails_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_models=TESTS)
    # the plugin may be installed under its own name too, and a module cannot be registered twice
    plugin = ("-p", "no:spurless", "-p", "spurless.pytest_plugin", "-p", "no:randomly", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(*plugin, "--spurless-pages", "pages")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*AuditFailedError: The audit fails.", "*The verdict is *", "*worst group*80 %*"])
    names = sorted(path.name for path in (pytester.path / "pages").iterdir())
    assert names == [
        f"{stem}.{suffix}"
        for stem in ("test_models.py-test_attribute-a-b-c-", "test_models.py-test_label")
        for suffix in ("html", "json")
    ]


def test_the_plugin_is_an_entry_point_and_does_not_import_torch() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"spurless": "spurless.pytest_plugin"}
    code = "import sys, spurless.pytest_plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
