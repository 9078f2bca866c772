"""Errors: each is one sentence that a person can act on."""

import copy
import pickle

import pytest

from spurless.core.errors import (
    BadInput,
    Diverged,
    MissingAttributes,
    MissingExtra,
    SpurlessError,
    UndeclaredUse,
    UnknownName,
    did_you_mean,
    first_line,
)

SENTENCES: list[tuple[SpurlessError, type[Exception], str]] = [
    (BadInput("it is odd"), ValueError, "it is odd."),
    (BadInput("it is odd", where="m.csv"), ValueError, "m.csv: it is odd."),
    (BadInput("it is odd", expected=1), ValueError, "it is odd (expected 1)."),
    (BadInput("it is odd", got=0), ValueError, "it is odd (got 0)."),
    (
        BadInput("it is odd", where="row 3", expected="0 to 1", got=7, do="Fix it."),
        ValueError,
        "row 3: it is odd (expected 0 to 1, got 7). Fix it.",
    ),
    (
        UnknownName("method", "groupdro", ["group-dro", "erm"]),
        KeyError,
        "No method is called 'groupdro'. Did you mean 'group-dro'? Known: erm, group-dro.",
    ),
    (UnknownName("method", "x", []), KeyError, "No method is called 'x'. Known: none."),
    (
        MissingAttributes("group-dro", "train"),
        ValueError,
        "group-dro needs the attribute a of every example of the train split, but a is hidden or unknown (-1). "
        "Pass data with attributes.",
    ),
    (
        MissingAttributes("group-dro", "train", ["jtt", "erm"]),
        ValueError,
        "group-dro needs the attribute a of every example of the train split, but a is hidden or unknown (-1). "
        "Pass data with attributes, or use a method that needs none: erm, jtt.",
    ),
    (UndeclaredUse("The test split is never shown."), AttributeError, "The test split is never shown."),
    (
        Diverged("erm", 40, 0.1),
        ArithmeticError,
        "Training 'erm' diverged: the loss was not finite by step 40 (learning rate 0.1). "
        "Lower the learning rate (--lr 0.01), clip gradients (--clip 1), or warm up (--warmup-steps 100).",
    ),
    (
        Diverged("erm", 40, 0.1, "what the model says"),
        ArithmeticError,
        "Training 'erm' diverged: what the model says was not finite by step 40 (learning rate 0.1). "
        "Lower the learning rate (--lr 0.01), clip gradients (--clip 1), or warm up (--warmup-steps 100).",
    ),
    (
        MissingExtra("timm", "timm", "The model 'vit'"),
        ImportError,
        "The model 'vit' needs the package 'timm'. Install it with: pip install 'spurless[timm]'.",
    ),
]

every_error = pytest.mark.parametrize(
    ("error", "kind", "sentence"), SENTENCES, ids=[f"{i} {type(e).__name__}" for i, (e, _, _) in enumerate(SENTENCES)]
)


@every_error
def test_says_its_sentence(error: SpurlessError, kind: type[Exception], sentence: str) -> None:
    assert str(error) == sentence
    assert isinstance(error, kind)
    assert "\n" not in sentence


@every_error
def test_crosses_processes_unchanged(error: SpurlessError, kind: type[Exception], sentence: str) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert isinstance(again, kind)
        assert str(again) == sentence


def test_a_note_crosses_too() -> None:
    error = BadInput("it is odd")
    error.add_note("while reading seed 3")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while reading seed 3"]


@pytest.mark.parametrize(
    ("got", "hint"),
    [("ERM", " Did you mean 'erm'?"), ("jt", " Did you mean 'jtt'?"), ("zebra", ""), ("", "")],
)
def test_suggests_the_nearest_name_or_nothing(got: str, hint: str) -> None:
    assert did_you_mean(got, ["erm", "jtt"]) == hint


def test_of_an_error_of_others_the_first_line_is_told_without_its_colours() -> None:
    assert first_line(ValueError("\x1b[1;31mno such\x1b[0m layer.\nmore")) == "no such layer"
    assert first_line(KeyError()) == "KeyError"
