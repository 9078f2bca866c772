"""Errors: each is one sentence that a person can act on."""

import copy
import pickle

import pytest

from spurless.core.errors import (
    DivergedError,
    InputError,
    MissingAttributesError,
    MissingExtraError,
    SpurlessError,
    UndeclaredAccessError,
    UnknownNameError,
    did_you_mean,
    first_line,
)

SENTENCES: list[tuple[SpurlessError, type[Exception], str]] = [
    (InputError("it is odd"), ValueError, "it is odd."),
    (InputError("it is odd", where="m.csv"), ValueError, "m.csv: it is odd."),
    (InputError("it is odd", expected=1), ValueError, "it is odd (expected 1)."),
    (InputError("it is odd", got=0), ValueError, "it is odd (got 0)."),
    (
        InputError("it is odd", where="row 3", expected="0 to 1", got=7, hint="Fix it."),
        ValueError,
        "row 3: it is odd (expected 0 to 1, got 7). Fix it.",
    ),
    (
        UnknownNameError("method", "groupdro", ["group-dro", "erm"]),
        KeyError,
        "No method is called 'groupdro'. Did you mean 'group-dro'? Known: erm, group-dro.",
    ),
    (UnknownNameError("method", "x", []), KeyError, "No method is called 'x'. Known: none."),
    (
        MissingAttributesError("group-dro", "train"),
        ValueError,
        "group-dro needs the attribute a of every example of the train split, but a is hidden or unknown (-1). "
        "Pass data with attributes.",
    ),
    (
        MissingAttributesError("group-dro", "train", ["jtt", "erm"]),
        ValueError,
        "group-dro needs the attribute a of every example of the train split, but a is hidden or unknown (-1). "
        "Pass data with attributes, or use a method that needs none: erm, jtt.",
    ),
    (UndeclaredAccessError("The test split is never shown."), AttributeError, "The test split is never shown."),
    (
        DivergedError("erm", 40, 0.1),
        ArithmeticError,
        "Training 'erm' diverged: the loss was not finite by step 40 (learning rate 0.1). "
        "Lower the learning rate (--lr 0.01), clip gradients (--clip 1), or warm up (--warmup-steps 100).",
    ),
    (
        DivergedError("erm", 40, 0.1, "what the model says"),
        ArithmeticError,
        "Training 'erm' diverged: what the model says was not finite by step 40 (learning rate 0.1). "
        "Lower the learning rate (--lr 0.01), clip gradients (--clip 1), or warm up (--warmup-steps 100).",
    ),
    (
        MissingExtraError("timm", "timm", "The model 'vit'"),
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
    error = InputError("it is odd")
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
