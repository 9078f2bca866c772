"""Options: every conversion, and every sentence for what cannot be converted."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from spurless.core.config import configure, parse_pairs, read_toml
from spurless.core.errors import InputError


@dataclass(frozen=True)
class Walk:
    """One field of every kind."""

    steps: int = 1
    lr: float = 0.1
    warm: bool = False
    name: str = ""
    out: Path = Path()
    pace: Literal["slow", "fast"] = "slow"
    legs: Literal[2, 4] = 2
    milestones: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    size: tuple[int, float] = (1, 1.0)
    clip: float | None = None
    limit: Optional[int] = None  # noqa: UP045  # both spellings of a union are read
    threads: int | Literal["auto"] = "auto"
    anything: dict[str, int] = field(default_factory=dict)
    hidden: int = field(default=0, init=False)


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("steps", "12", 12),
        ("steps", 12, 12),
        ("steps", 12.0, 12),
        ("steps", "-3", -3),
        ("lr", "1e-3", 0.001),
        ("lr", 1, 1.0),
        ("lr", "inf", math.inf),
        ("warm", "true", True),
        ("warm", "False", False),
        ("warm", "yes", True),
        ("warm", "no", False),
        ("warm", "1", True),
        ("warm", 0, False),
        ("warm", True, True),
        ("name", "erm", "erm"),
        ("name", 3, "3"),
        ("out", "a/b", Path("a/b")),
        ("out", Path("a"), Path("a")),
        ("pace", "fast", "fast"),
        ("legs", 4, 4),
        ("legs", "4", 4),
        ("milestones", "1,2,3", (1, 2, 3)),
        ("milestones", "1, 2", (1, 2)),
        ("milestones", [1, 2], (1, 2)),
        ("milestones", (), ()),
        ("milestones", "", ()),
        ("words", "a, b", ("a", "b")),
        ("words", "", ()),
        ("size", "3,0.5", (3, 0.5)),
        ("clip", "none", None),
        ("clip", None, None),
        ("clip", "0.5", 0.5),
        ("limit", "none", None),
        ("limit", "7", 7),
        ("threads", "auto", "auto"),
        ("threads", "3", 3),
        ("anything", {"a": 1}, {"a": 1}),
    ],
)
def test_converts(key: str, given: Any, value: Any) -> None:
    found = getattr(configure(Walk, {key: given}, "walk"), key)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(configure(Walk, {"lr": "nan"}, "walk").lr)


@pytest.mark.parametrize(
    ("key", "given", "sentence"),
    [
        ("steps", "x", "option 'steps' of walk has the wrong type (expected an integer, got 'x')."),
        ("steps", 2.5, "option 'steps' of walk has the wrong type (expected an integer, got 2.5)."),
        ("steps", "2.5", "option 'steps' of walk has the wrong type (expected an integer, got '2.5')."),
        ("steps", math.inf, "option 'steps' of walk has the wrong type (expected an integer, got inf)."),
        ("steps", math.nan, "option 'steps' of walk has the wrong type (expected an integer, got nan)."),
        ("steps", True, "option 'steps' of walk has the wrong type (expected an integer, got True)."),
        ("steps", [1], "option 'steps' of walk has the wrong type (expected an integer, got [1])."),
        ("lr", "fast", "option 'lr' of walk has the wrong type (expected a number, got 'fast')."),
        ("lr", None, "option 'lr' of walk has the wrong type (expected a number, got None)."),
        ("lr", False, "option 'lr' of walk has the wrong type (expected a number, got False)."),
        ("warm", "maybe", "option 'warm' of walk has the wrong type (expected true or false, got 'maybe')."),
        ("warm", 2, "option 'warm' of walk has the wrong type (expected true or false, got 2)."),
        ("name", [1], "option 'name' of walk has the wrong type (expected text, got [1])."),
        ("name", None, "option 'name' of walk has the wrong type (expected text, got None)."),
        ("out", 5, "option 'out' of walk has the wrong type (expected a path, got 5)."),
        ("pace", "FAST", "option 'pace' of walk cannot be 'FAST' (expected 'slow', 'fast')."),
        ("legs", "3", "option 'legs' of walk cannot be '3' (expected 2, 4)."),
        ("legs", [2], "option 'legs' of walk cannot be [2] (expected 2, 4)."),
        ("milestones", 5, "option 'milestones' of walk has the wrong type (expected a list, got 5)."),
        ("milestones", "1,x", "option 'milestones' of walk has the wrong type (expected an integer, got 'x')."),
        ("size", "3", "option 'size' of walk has the wrong type (expected a list of 2, got '3')."),
        ("clip", "x", "option 'clip' of walk has the wrong type (expected a number, got 'x')."),
        ("threads", "x", "option 'threads' of walk cannot be 'x' (expected 'auto')."),
    ],
)
def test_says_what_cannot_be_converted(key: str, given: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        configure(Walk, {key: given}, "walk")
    assert str(caught.value) == sentence


def test_a_hyphen_is_an_underscore() -> None:
    @dataclass(frozen=True)
    class Loop:
        batch_size: int = 1

    assert configure(Loop, {"batch-size": "8"}, "loop") == Loop(8)


def test_an_unknown_key_is_answered_with_a_suggestion() -> None:
    with pytest.raises(
        InputError, match=r"^walk has no option 'step'. Did you mean 'steps'\? Options: anything, clip, "
    ):
        configure(Walk, {"step": 1}, "walk")
    with pytest.raises(InputError, match=r"^walk has no option 'zzz'. Options: anything, clip, "):
        configure(Walk, {"zzz": 1}, "walk")


def test_a_field_that_is_no_argument_is_no_option() -> None:
    with pytest.raises(InputError, match="walk has no option 'hidden'"):
        configure(Walk, {"hidden": 1}, "walk")


def test_a_configuration_without_options_says_so() -> None:
    @dataclass(frozen=True)
    class Nothing:
        pass

    assert configure(Nothing, {}, "erm") == Nothing()
    with pytest.raises(InputError, match=r"erm has no option 'lr'\. Options: none\."):
        configure(Nothing, {"lr": 1}, "erm")


def test_an_option_that_must_be_given_is_asked_for() -> None:
    @dataclass(frozen=True)
    class Needy:
        folder: Path
        seed: int = 0

    assert configure(Needy, {"folder": "x"}, "needy") == Needy(Path("x"))
    with pytest.raises(InputError, match="needy requires the option 'folder'"):
        configure(Needy, {"seed": 1}, "needy")


def test_only_a_dataclass_can_be_configured() -> None:
    with pytest.raises(TypeError, match="is not a dataclass"):
        configure(int, {}, "int")


def test_pairs_split_at_the_first_equals_sign() -> None:
    assert parse_pairs(["a=1", " b = x=y ", "c="], "--set") == {"a": "1", "b": "x=y", "c": ""}
    assert parse_pairs([], "--set") == {}


@pytest.mark.parametrize("word", ["seed", "=1", " =1", ""])
def test_a_word_that_is_no_pair_is_refused(word: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_pairs([word], "--set")
    assert str(caught.value) == f"--set {word!r} is not KEY=VALUE. Write for example --set seed=1."


def test_reads_toml(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('seeds = [0, 1]\nname = "café"\n[train]\nlr = 0.1\n', encoding="utf-8")
    assert read_toml(tmp_path / "plan.toml") == {"seeds": [0, 1], "name": "café", "train": {"lr": 0.1}}


def test_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_toml(tmp_path / "plan.toml")
    assert str(caught.value) == f"{tmp_path}/plan.toml: no such file (expected a TOML file)."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"lr = \n", r"Invalid value \(at line 1, column 6\)"),
        (b"lr = 1\nlr = 2\n", "Cannot overwrite a value"),
        (b'name = "caf\xe9"\n', "'utf-8' codec can't decode"),
    ],
)
def test_says_which_file_is_no_toml_and_why(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "plan.toml").write_bytes(content)
    with pytest.raises(InputError, match=rf"plan.toml: the file is not TOML: {reason}"):
        read_toml(tmp_path / "plan.toml")


def test_a_folder_is_no_toml(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"this is a folder \(expected a TOML file\)"):
        read_toml(tmp_path)
