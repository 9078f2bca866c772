"""Plain words: names and prose that a reader from the field would have to translate are not used.

The first table lists names that had several meanings or none, the second words that belong to speech or metaphor.
``HOMONYMS`` is for a banned word in its ordinary technical meaning, with the reason.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import spurless

SOURCE = Path(spurless.__path__[0])
ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__")

BANNED_NAMES = {
    "Grouped", "Engine", "Machines", "Cell", "Asked", "Ready", "Lost", "Left", "Look", "Workshop", "Situation",
    "Held", "Named", "Fate", "Measure", "BadInput", "UnknownName", "MissingAttributes", "UndeclaredUse", "Diverged",
    "MissingExtra", "NoNumbers", "Incomplete", "said", "told", "tell", "teller", "listening", "heard", "signed",
    "marked", "adopted", "reserved", "alone", "look", "look_uphill", "liked", "judge", "walk", "walked", "within",
    "settled", "spelt", "spoken", "crew", "arrivals", "open_queues", "kept", "made", "fresh", "begun", "shown",
    "aside", "leans", "proven", "apart", "share", "shares", "hits", "mistakes", "some", "there", "home", "place",
    "places", "each", "every", "found", "own", "mine", "twin", "HAIR", "NOTHING", "ROOM", "SAME", "TINY", "STRANGE",
    "APART", "LEAST", "MOST", "SEEN", "SPOKEN",
}  # fmt: skip
BANNED_WORDS = re.compile(
    r"""\b(
    say | says | said | saying | tell | tells | told | telling | hear | hears | heard | speak | speaks | spoken
    | asks? | asked | asking | nobody | whoever | whichever | anew | shall | beside
    | lean | leans | leaning | twins? | mends? | mended
    | voyage | crew | harbour | rooms? | door | liked | believes? | belief | learnt | hits | mistakes?
    | in\ the\ place\ of | so\ many | of\ one's\ own | by\ heart | (?<!there\ )(?:is|are|was)\ no(?!\ longer)
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
HOMONYMS: dict[str, dict[str, str]] = {
    # file: {word: reason}
    "CHANGELOG.md": {"said": "old name", "leans": "old name"},
    "docs/datasets.md": {"nobody": "a negation word in the data"},
    "docs/decisions/0014-redesign-exceptions.md": dict.fromkeys(("said", "leans", "mistakes"), "field of JSON records"),
    "src/spurless/auditing/__init__.py": {"mistakes": "field of the JSON of an audit"},
    "src/spurless/auditing/callback.py": {"every": "public option"},
    "src/spurless/auditing/hidden_regions.py": {"mistakes": "field of the JSON of an audit"},
    "src/spurless/data/datasets/multinli.py": {"nobody": "a negation word in the data"},
    "src/spurless/data/datasets/negated_claims.py": {"nobody": "a negation word in the data"},
    "src/spurless/data/words.py": {"nobody": "a negation in the list of words"},
    "src/spurless/methods/afr.py": {"every": "public option"},
    "src/spurless/methods/self_finetuning.py": {"mistakes": "value of a public option"},
    "src/spurless/reporting/fix_page.py": {"said": "field of the JSON of a repair"},
}


def bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the identifiers that a node binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.id if isinstance(node, ast.Name) else node.attr


def parts_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, kind, text) of every identifier that a file binds, and of every string and comment."""
    for node in ast.walk(ast.parse(text)):
        yield from ((getattr(node, "lineno", 0), "name", name) for name in bound_names(node))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, "prose", node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], "prose", token.string


def violations(path: Path) -> Iterator[str]:
    allowed = HOMONYMS.get(str(path.relative_to(ROOT)), {})
    for line, kind, text in parts_of(path.read_text()):
        if kind == "name":
            words = {text.lstrip("_")} & BANNED_NAMES
        else:
            words = {match.group(0).lower() for match in BANNED_WORDS.finditer(text)}
        yield from (f"{path.relative_to(ROOT)}:{line}: {word}" for word in sorted(words - set(allowed)))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_source_uses_plain_words(package: str) -> None:
    assert [line for path in sorted((SOURCE / package).rglob("*.py")) for line in violations(path)] == []


def test_the_documentation_uses_plain_words() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(SOURCE / "reporting" / "templates").iterdir()]
    found = []
    for page in pages:
        allowed = HOMONYMS.get(str(page.relative_to(ROOT)), {})
        for number, line in enumerate(page.read_text().splitlines(), 1):
            words = {match.group(0).lower() for match in BANNED_WORDS.finditer(line)} - set(allowed)
            found += [f"{page.relative_to(ROOT)}:{number}: {word}" for word in sorted(words)]
    assert found == []
