"""Examples: how one example of a dataset is put on a page: as a picture, as words, or as numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from spurless.core.errors import SpurlessError
from spurless.reporting.sheet import Example

if TYPE_CHECKING:
    from torch import Tensor

    from spurless.data.grouped import Grouped, Splits

SMALL, LARGE = 64, 144
"""pixels: smaller pictures are enlarged, larger ones are reduced; eight of them fit on a row"""
VALUES = 12
"""numbers of an example that are shown"""


@dataclass(frozen=True)
class Maker:
    """How an example of these data is shown."""

    make: Callable[[Grouped, int], Example]
    columns: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def maker_for(splits: Splits) -> Maker:
    """Choose by what the inputs are: pictures, token numbers, or numbers."""
    x = splits.train.x
    if isinstance(x, dict):
        return _texts(splits)
    shape = tuple(x[0].shape)
    facts = (("Input", input_words(shape, str(x[0].dtype))),)
    if is_picture(shape):
        return Maker(_picture, facts=facts)
    return _numbers(splits, shape, facts)


def is_picture(shape: tuple[int, ...]) -> bool:
    """Tell a picture, grey or RGB, from other tensors."""
    return len(shape) == 3 and shape[0] in (1, 3)


def input_words(shape: tuple[int, ...], dtype: str) -> str:
    """Say what an input is.

    Example:
        >>> input_words((3, 28, 28), "torch.uint8"), input_words((2,), "torch.float32")
        ('RGB image, 28 x 28 pixels, uint8', '2 numbers, float32')
    """
    kind = dtype.removeprefix("torch.")
    if is_picture(shape):
        return f"{'RGB' if shape[0] == 3 else 'grey'} image, {shape[2]} x {shape[1]} pixels, {kind}"
    if len(shape) == 1:
        return f"{shape[0]} number{'' if shape[0] == 1 else 's'}, {kind}"
    return f"tensor {' x '.join(map(str, shape))}, {kind}"


def _picture(split: Grouped, i: int) -> Example:
    return Example(f"example {i}", png=png(_input(split, i)))


def _numbers(splits: Splits, shape: tuple[int, ...], facts: tuple[tuple[str, str], ...]) -> Maker:
    names = splits.options.get("features") or ()
    n = min(VALUES, int(_input(splits.train, 0).numel()))
    named = len(shape) == 1 and len(names) == shape[0]
    columns = tuple(names[:n]) if named else tuple(f"x{i}" for i in range(n))
    if _input(splits.train, 0).numel() > n:
        facts = (*facts, ("Shown", f"the first {n} numbers of each example"))

    def make(split: Grouped, i: int) -> Example:
        return Example(f"example {i}", values=tuple(f"{v:.4g}" for v in _input(split, i).flatten()[:n].tolist()))

    return Maker(make, columns, facts)


def _texts(splits: Splits) -> Maker:
    """Show the text as it was given, else what the tokenizer makes of it; token numbers where none is to be had."""
    from spurless.data import DATASETS

    if splits.train.names is not None and splits.train.names.texts is not None:
        return Maker(_written, facts=(("Input", "text"),))
    name = splits.options.get("tokenizer")
    own = DATASETS[splits.name].words if splits.name in DATASETS else ()
    decode: Callable[[list[int]], str] | None = None
    if own:
        decode = partial(_spell, own)
    elif isinstance(name, str):
        decode = _decoder(name)
    note = "The data hold token numbers, and their tokenizer is not known here, so the numbers are shown."

    def make(split: Grouped, i: int) -> Example:
        ids = token_ids(split, i)
        text = decode(ids) if decode is not None else " ".join(map(str, ids))
        return Example(f"example {i}, {len(ids)} tokens", text=text)

    return Maker(make, facts=(("Input", "text"),), notes=() if decode else (note,))


def _written(split: Grouped, i: int) -> Example:
    text = None if split.names is None else split.names.text(i)
    return Example(f"example {i}, {len(token_ids(split, i))} tokens", text=text or "")


def _spell(words: tuple[str, ...], ids: list[int]) -> str:
    return " ".join(words[i] for i in ids)


def _decoder(tokenizer: str) -> Callable[[list[int]], str] | None:
    from spurless.core.pretrained import open_pretrained, transformers_for
    from spurless.data.words import NAME

    if tokenizer == NAME:  # a hash cannot be read back, and nobody is to be asked for it
        return None
    try:
        load = transformers_for("Text").AutoTokenizer.from_pretrained
        opened = open_pretrained(load, tokenizer, "tokenizer")
    except SpurlessError:
        return None
    return lambda ids: str(opened.decode(ids))


def token_ids(split: Grouped, i: int) -> list[int]:
    """Return the token numbers of a text, without the padding."""
    x: Any = split.x
    ids = x["input_ids"] if "input_ids" in x else next(iter(x.values()))
    mask = x.get("attention_mask")
    row = ids[i] if mask is None else ids[i][mask[i].bool()]
    found: list[int] = row.flatten().tolist()
    return found


def _input(split: Grouped, i: int) -> Tensor:
    x: Any = split.x
    found: Tensor = x[i]
    return found


def png(image: Tensor) -> bytes:
    """Encode a picture, grey or RGB: small ones are enlarged pixel by pixel, large ones are reduced."""
    from io import BytesIO

    from PIL import Image

    pixels = _bytes(image)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array)
    short, long = min(picture.size), max(picture.size)
    factor = min(-(-SMALL // short), max(1, 2 * LARGE // long))
    if factor > 1:
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    elif long > LARGE:
        picture.thumbnail((LARGE, LARGE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _bytes(image: Tensor) -> Tensor:
    """Bring pixels to 0 to 255; where no range is known, from their smallest to their largest."""
    import torch

    if image.dtype == torch.uint8:
        return image
    values = image.float()
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        values = (values - low) / ((high - low) or 1)
    return (255 * values).round().to(torch.uint8)
