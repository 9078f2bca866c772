"""``spurless data show``: write a page with a few examples of every group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spurless.cli.console import print_text
from spurless.cli.data_describe import describe_input, is_picture
from spurless.cli.inputs import open_data
from spurless.cli.outputs import check_outputs
from spurless.cli.params import OUTPUT, SPLITS, DataArgument, DataSeed, Quiet, check_split_name, expand_params, param
from spurless.core.errors import SpurlessError
from spurless.reporting.dataset_page import Example

if TYPE_CHECKING:
    from torch import Tensor

    from spurless.core.groups import Groups
    from spurless.data.split import Split, Splits
    from spurless.reporting.dataset_page import DatasetPage, GroupExamples, SplitExamples

MAX_GROUPS = 400  # groups of a split on the page; of more, the largest
MAX_EXAMPLES = 2000  # examples of a split on the page, unless there are more groups
MIN_PIXELS, MAX_PIXELS = 64, 144  # smaller images are enlarged, larger ones reduced; eight fit in a row
MAX_VALUES = 12  # numbers of an example that are shown


@expand_params
def show(
    *,
    data: DataArgument,
    part: str = param("train", OUTPUT, "Split to show: train, val, test or all.", metavar="SPLIT"),
    per_group: int | None = param(
        None, OUTPUT, "Maximum number of examples per group.", min=1, show_default="8, or 1 of more than 16 groups"
    ),
    out: Path = param(Path("sheet.html"), OUTPUT, "Page to write.", metavar="FILE"),
    seed: DataSeed = 0,
    quiet: Quiet = False,
) -> None:
    """Write a page with random examples of every group of DATA, and print its path.

    Look at it before training, to check that the attribute is what you expect.
    The page is one self-contained file. Images are shown as they are stored,
    before any transform.

    Examples:
      spurless data show patched-digits --out digits.html
      spurless data show waterbirds --root ~/data --part all --per-group 4
      spurless data show meta.csv --label y --attribute place --root images
    """
    from spurless.reporting.dataset_page import write_dataset_page

    check_split_name(part, "all")
    check_outputs([out], "--out", inputs=data.inputs)
    splits = open_data(data.data, data.options, data.columns, seed, quiet, lazy=True)
    page = build_page(splits, SPLITS if part == "all" else (part,), per_group, seed)
    print_text(write_dataset_page(out, page).resolve())


def build_page(splits: Splits, parts: tuple[str, ...], per_group: int | None, seed: int) -> DatasetPage:
    """Choose examples of every group and render them for a page; no other examples are read."""
    from spurless.reporting.dataset_page import MAX_GROUP_ROWS, DatasetPage

    groups = {name: list(list_groups(getattr(splits, name))) for name in parts}
    n = per_group or (1 if max(map(len, groups.values())) > MAX_GROUP_ROWS else 8)
    renderer = choose_renderer(splits)
    has_sides = attributes_match_classes(splits)
    rendered = tuple(
        _render_split(name, getattr(splits, name), members, n, renderer, seed, has_sides)
        for name, members in groups.items()
    )
    options = {key: value for key, value in splits.options.items() if value not in (None, []) and key != "stream"}
    facts = [("Data", splits.name)]
    facts += [("Options", ", ".join(f"{key}={value}" for key, value in options.items()))] if options else []
    return DatasetPage(
        title=splits.name,
        about=f"{n} random example{'' if n == 1 else 's'} of each group, seed {seed}",
        splits=rendered,
        columns=renderer.columns,
        facts=(*facts, *renderer.facts),
        notes=(*splits.notes, *renderer.notes),
    )


def _render_split(
    name: str, split: Split, groups: list[Members], n: int, renderer: Renderer, seed: int, has_sides: bool
) -> SplitExamples:
    import torch

    from spurless.core.seeds import Seeds
    from spurless.reporting.dataset_page import GroupExamples, SplitExamples

    if len(groups) > MAX_GROUPS:
        groups = sorted(groups, key=lambda group: -len(group.index))[:MAX_GROUPS]
    n = max(1, min(n, MAX_EXAMPLES // len(groups)))
    cells: list[GroupExamples] = []
    for group in groups:
        generator = Seeds(seed).generator("sheet", name, group.label, group.attribute)
        chosen = group.index[torch.randperm(len(group.index), generator=generator)[:n]]
        examples = tuple(renderer.render(split, int(i)) for i in chosen)
        is_aligned = None if group.a is None or not has_sides else group.y == group.a
        cells.append(GroupExamples(group.label, group.attribute, len(group.index), examples, is_aligned))
    return SplitExamples(name, len(split), tuple(cells))


@dataclass(frozen=True)
class Members:
    """The examples of one group."""

    label: str
    attribute: str
    y: int
    a: int | None
    index: Tensor


def list_groups(split: Split) -> Iterator[Members]:
    """Yield every group, also empty ones, and then the examples in no group, by class."""
    import torch

    groups, known = split.groups, split.groups.known(split.a)
    in_group = torch.zeros(len(split), dtype=torch.bool)
    for y, label in enumerate(groups.labels):
        for a, attribute in enumerate(groups.attributes or ("",)):
            members = (split.y == y) & known & _has_attribute(split, a)
            in_group |= members
            yield Members(label, attribute, y, a if groups.attributes else None, members.nonzero().flatten())
    word = "none of these" if groups.overlap else "attribute unknown"
    for y, label in enumerate(groups.labels):
        rest = ((split.y == y) & ~in_group).nonzero().flatten()
        if len(rest):
            yield Members(label, word, y, None, rest)


def _has_attribute(split: Split, a: int) -> Tensor:
    """Return which examples have attribute number ``a``, among those whose attribute is known."""
    import torch

    groups: Groups = split.groups
    if not groups.attributes:
        return torch.ones(len(split), dtype=torch.bool)
    if groups.overlap:
        return split.a.reshape(len(split), -1)[:, a] == 1
    known = groups.known(split.a)
    y = torch.zeros_like(split.y)  # with label 0, the number of the group is that of the attribute
    return groups.encode(y, torch.where(known if split.a.dim() == 1 else known[:, None], split.a, 0)) == a


def attributes_match_classes(splits: Splits) -> bool:
    """Return whether attribute number i goes with class number i more often in train than by chance."""
    groups, train = splits.groups, splits.train
    if groups.overlap or groups.sizes or len(groups.attributes) != len(groups.labels):
        return False
    counts = train.counts.reshape(len(groups.labels), -1).double()
    by_chance = float((counts.sum(dim=0) * counts.sum(dim=1)).sum()) / max(float(counts.sum()), 1)
    return float(counts.trace()) > by_chance


@dataclass(frozen=True)
class Renderer:
    """How an example of these data is shown."""

    render: Callable[[Split, int], Example]
    columns: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def choose_renderer(splits: Splits) -> Renderer:
    """Choose how to show the inputs: as images, texts or numbers."""
    x: Any = splits.train.x
    if isinstance(x, dict):
        return _text_renderer(splits)
    shape = tuple(x[0].shape)
    facts: tuple[tuple[str, str], ...] = (("Input", describe_input(shape, str(x[0].dtype))),)
    if is_picture(shape):
        return Renderer(lambda split, i: Example(f"example {i}", png=encode_png(_input(split, i))), facts=facts)
    names = splits.options.get("features") or ()
    total = int(x[0].numel())
    n = min(MAX_VALUES, total)
    has_names = len(shape) == 1 and len(names) == shape[0]
    columns = tuple(names[:n]) if has_names else tuple(f"x{i}" for i in range(n))
    facts = (*facts, *([("Shown", f"the first {n} numbers of each example")] if total > n else []))

    def render(split: Split, i: int) -> Example:
        return Example(f"example {i}", values=tuple(f"{v:.4g}" for v in _input(split, i).flatten()[:n].tolist()))

    return Renderer(render, columns, facts)


def _text_renderer(splits: Splits) -> Renderer:
    """Show the original text, else the decoded tokens, else the token numbers."""
    from spurless.data import DATASETS

    facts, ids_of_all = (("Input", "text"),), splits.train.names
    if ids_of_all is not None and ids_of_all.texts is not None:

        def render_original(split: Split, i: int) -> Example:
            text = None if split.names is None else split.names.text(i)
            return Example(f"example {i}, {len(token_ids(split, i))} tokens", text=text or "")

        return Renderer(render_original, facts=facts)
    words = DATASETS[splits.name].vocabulary if splits.name in DATASETS else ()
    decode = _load_decoder(words, splits.options.get("tokenizer"))
    note = "The data contain token numbers, and their tokenizer is not available, so the numbers are shown."

    def render(split: Split, i: int) -> Example:
        ids = token_ids(split, i)
        text = decode(ids) if decode is not None else " ".join(map(str, ids))
        return Example(f"example {i}, {len(ids)} tokens", text=text)

    return Renderer(render, facts=facts, notes=() if decode else (note,))


def _load_decoder(words: tuple[str, ...], tokenizer: object) -> Callable[[list[int]], str] | None:
    from spurless.core.hf_files import import_transformers, open_pretrained
    from spurless.data.loaders.text import HASH_TOKENIZER

    if words:
        return lambda ids: " ".join(words[i] for i in ids)
    if not isinstance(tokenizer, str) or tokenizer == HASH_TOKENIZER:  # a hash cannot be decoded
        return None
    try:
        load = import_transformers("Text").AutoTokenizer.from_pretrained
        opened = open_pretrained(load, tokenizer, "tokenizer")
    except SpurlessError:
        return None
    return lambda ids: str(opened.decode(ids))


def token_ids(split: Split, i: int) -> list[int]:
    """Return the token numbers of a text, without the padding."""
    x: Any = split.x
    ids = x["input_ids"] if "input_ids" in x else next(iter(x.values()))
    mask = x.get("attention_mask")
    row: Tensor = ids[i] if mask is None else ids[i][mask[i].bool()]
    return [int(number) for number in row.flatten()]


def _input(split: Split, i: int) -> Tensor:
    x: Any = split.x
    return x[i]  # type: ignore[no-any-return]


def encode_png(image: Tensor) -> bytes:
    """Encode a grey or RGB image: small ones are enlarged pixel by pixel, large ones are reduced."""
    from io import BytesIO

    from PIL import Image

    pixels = _to_bytes(image)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array)
    short, long = min(picture.size), max(picture.size)
    factor = min(-(-MIN_PIXELS // short), max(1, 2 * MAX_PIXELS // long))
    if factor > 1:
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    elif long > MAX_PIXELS:
        picture.thumbnail((MAX_PIXELS, MAX_PIXELS), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _to_bytes(image: Tensor) -> Tensor:
    """Scale pixels to 0 to 255; values outside 0 to 1 are scaled from their minimum to their maximum."""
    import torch

    if image.dtype == torch.uint8:
        return image
    values = image.float()
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        values = (values - low) / ((high - low) or 1)
    return (255 * values).round().to(torch.uint8)
