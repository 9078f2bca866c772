"""The flags, as --help shows them: every command explains itself, with an example, on 80 columns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from spurless import __version__
from spurless.cli.params import parse_coverages
from spurless.core.errors import InputError

Cli = Callable[..., Any]
COMMANDS = ("demo", "fit", "eval", "report", "reproduce", "sweep", "bench", "ls", "data check")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_fits_80_columns(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--help")
    assert (result.status, result.err) == (0, "")
    assert f"  spurless {command}" in result.out.split("Example", 1)[1]
    assert max(map(len, result.out.splitlines())) <= 80


def test_help_loses_no_word_in_brackets(cli: Cli) -> None:
    text = " ".join(cli("fit", "--help").out.replace("│", " ").split())
    assert "[data], [model], [method], [train]" in text
    assert "sgd, adam or adamw. [default: (sgd)]" in text


def test_help_groups_the_flags_of_fit(cli: Cli) -> None:
    out = cli("fit", "--help").out
    names = ("Data", "Model", "Method", "Training", "Compute", "Selective prediction", "Output")
    panels = [out.index(f"─ {name} ─") for name in names]
    assert panels == sorted(panels)


def test_no_word_at_all_prints_the_commands(cli: Cli) -> None:
    result = cli()
    assert (result.status, result.err) == (0, "")
    assert all(f"│ {command.split()[0]} " in result.out for command in COMMANDS)
    assert result.out == cli("--help").out


def test_version_is_printed(cli: Cli) -> None:
    assert (cli("--version").status, cli("--version").out) == (0, f"{__version__}\n")


def test_help_comes_at_once_because_torch_is_not_imported() -> None:
    program = (
        "import sys; from spurless.cli import main\ntry:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "fit", "--help"], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_shares_are_read_in_their_order_each_once() -> None:
    assert parse_coverages("1,0.95, 0.9 ,0.9,.8") == (1.0, 0.95, 0.9, 0.8)
    assert parse_coverages(None) == ()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("80", r"--coverage takes fractions, but 80 is a percentage\. Write 0\.8\."),
        ("1,97.5", r"97\.5 is a percentage\. Write 0\.975\."),
        ("0.9,0", r"--coverage 0 is out of range \(expected above 0 and at most 1\)"),
        ("-0.5", r"--coverage -0\.5 is out of range"),
        ("nan", r"--coverage nan is out of range"),
        ("1000", r"--coverage 1000 is out of range"),
        ("1,half", r"--coverage 'half' is not a number \(expected fractions such as 1,0\.9,0\.8\)"),
        ("", r"--coverage '' is not a number"),
        ("1,", r"--coverage '' is not a number"),
    ],
)
def test_what_is_no_share_is_refused_in_a_sentence(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        parse_coverages(text)
