r"""Transplants: replace one property of an example by that of a donor, and keep everything else.

A transplant shows what a model follows without any example that breaks the shortcut: if the prediction of an image
changes to the class of a donor whose color, border or corner it gets, the model follows that property.

Properties of an image ``(channels, height, width)``:

* *Simple* properties are a few numbers: the mean color (the brightness of a grey image), the color, the contrast, and
  the low frequencies, which are the image averaged over a 4 x 4 grid.
* *Outer* regions do not contain the center of the image: the frame, four bands, the corners and other outer cells of a
  3 x 3 and a 4 x 4 grid.
* The *periphery* is the outside of an ellipse, half of the image.
* *Central* properties are those in which the object usually is: the inside of the ellipse, the inner cells, and the
  high frequencies, which are what the 4 x 4 averages leave.

Of a table ``(features,)``, every feature is a property. Of a text, the presence of every word, list of words and pair
of neighboring words of :mod:`spurless.data.words` is a property, and so are the first and the last two words, and the
number of words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, overload

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from spurless.core.errors import UnknownNameError
from spurless.core.hashing import content_hash
from spurless.core.modules import Input
from spurless.core.seeds import Seeds
from spurless.data.split import Source, Split, map_input
from spurless.data.word_exchange import WordExchange, list_exchanges
from spurless.data.words import TokenSpelling, find_words

Kind: TypeAlias = Literal["simple", "outer", "periphery", "half", "central", "feature", "word"]
GRID = 4  # cells per side that the low frequencies average over
RADIUS = 0.8  # of the ellipse, as a fraction of half of each side: half of the image is inside, half outside
MAX_FEATURES = 256  # features of a table that are transplanted one by one
MIN_SCALE = 1e-6


@dataclass(frozen=True, eq=False)
class Transplant:
    """A property, and the function ``(receivers, donors) -> inputs`` that transplants it.

    Images and tables are passed to the function in floating point, texts as dicts of token ids and masks.
    """

    name: str
    kind: Kind
    apply: Callable[[Any, Any], Any]
    region: Tensor | None = None  # the pixels of a region, ``(height, width)``

    @overload
    def __call__(self, x: Tensor, donors: Tensor) -> Tensor: ...

    @overload
    def __call__(self, x: dict[str, Tensor], donors: dict[str, Tensor]) -> dict[str, Tensor]: ...

    def __call__(self, x: Any, donors: Any) -> Any:
        """Return ``x`` with this property of ``donors``, in the type and range of the inputs."""
        if isinstance(x, dict):
            return self.apply(x, donors)
        if not x.is_floating_point():
            return self.apply(x.float(), donors.float()).round().clamp(0, 255).to(x.dtype)
        dims = tuple(range(1, x.dim()))
        low, high = torch.minimum(x, donors).amin(dims, keepdim=True), torch.maximum(x, donors).amax(dims, keepdim=True)
        return torch.minimum(torch.maximum(self.apply(x, donors), low), high)


def list_transplants(split: Split, spelling: TokenSpelling | None = None) -> dict[str, Transplant]:
    """Return all transplants for the examples of a split, by name; none if they are not images, tables or texts.

    Args:
        split: the examples; the words of texts are those of this split.
        spelling: spelling of the tokens of a text; without it, words are named by number.
    """
    if not len(split) or (isinstance(split.x, dict) and "input_ids" not in split.x):
        return {}
    if isinstance(split.x, dict):
        return _list_word_transplants(split, spelling)
    return list_transplants_of_shape(tuple(split.x[0].shape))


def list_transplants_of_shape(shape: Sequence[int]) -> dict[str, Transplant]:
    """Return all transplants for tensors of a shape, by name.

    Example:
        >>> list(list_transplants_of_shape((2,)))
        ['feature 0', 'feature 1']
        >>> [name for name in list_transplants_of_shape((1, 28, 28)) if "frequencies" in name]
        ['the low frequencies', 'the high frequencies']
    """
    if len(shape) == 1 and shape[0] > 1:
        transplants = [Transplant(f"feature {j}", "feature", _feature(j)) for j in range(min(shape[0], MAX_FEATURES))]
    elif len(shape) == 3 and min(shape[1:]) >= 2:
        transplants = [*_simple_properties(shape[0]), *_regions(shape[1], shape[2])]
    else:
        transplants = []
    return {transplant.name: transplant for transplant in transplants}


def get_transplants(
    split: Split, names: Sequence[str], spelling: TokenSpelling | None = None
) -> tuple[Transplant, ...]:
    """Return transplants by name.

    Raises:
        UnknownNameError: the examples have no such property.
    """
    known = list_transplants(split, spelling)
    if isinstance(split.x, dict) and not known.keys() >= set(names):  # words that are frequent in another split
        known = _list_word_transplants(split, spelling, names)
    for name in names:
        if name not in known:
            raise UnknownNameError("property", name, tuple(known))
    return tuple(known[name] for name in names)


@dataclass(frozen=True, eq=False)
class TransplantedSource:
    """Examples ``rows`` of ``x``, each with a property of the example ``donors`` of ``x``."""

    x: Tensor | Source
    rows: Tensor
    donors: Tensor
    transplant: Transplant

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Tensor:
        return self.batch(torch.tensor([i]))[0]

    def batch(self, index: Tensor) -> Tensor:
        """Return the transplanted examples at ``index``."""
        index = index.cpu()
        return self.transplant(read_rows(self.x, self.rows[index]), read_rows(self.x, self.donors[index]))

    def fingerprint(self) -> str:
        """Return a content hash."""
        content = self.x if isinstance(self.x, Tensor) else self.x.fingerprint()
        return content_hash(content, self.rows, self.donors, self.transplant.name)


def transplant_split(split: Split, rows: Tensor, donors: Tensor, transplant: Transplant) -> Split:
    """Return the examples ``rows`` with a property of the examples ``donors``; labels and attributes are kept.

    Texts are changed at once, and images when they are read.
    """
    rest = replace(split, x=split.y, hidden=None).select(rows.to(split.y.device))  # everything but the inputs
    if isinstance(split.x, dict):
        return replace(rest, x=transplant(read_rows(split.x, rows), read_rows(split.x, donors)))
    return replace(rest, x=TransplantedSource(split.x, rows.cpu(), donors.cpu(), transplant))


def sample_donors(y: Tensor, seeds: Seeds, *, same_class: bool = False) -> Tensor:
    """Return a random donor for every example: of another class, or of the same class.

    An example without a possible donor gets itself.

    Example:
        >>> y = torch.tensor([0, 0, 1, 1, 1])
        >>> donors = sample_donors(y, Seeds(0))
        >>> bool((y[donors] != y).all())
        True
    """
    generator = seeds.generator("same" if same_class else "other")
    donors = torch.arange(len(y))
    for label in torch.unique(y):
        receivers, pool = (y == label).nonzero().flatten(), ((y == label) == same_class).nonzero().flatten()
        if len(pool):
            donors[receivers] = pool[torch.randint(len(pool), (len(receivers),), generator=generator)]
    return donors


@overload
def read_rows(x: Tensor | Source, rows: Tensor) -> Tensor: ...


@overload
def read_rows(x: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]: ...


def read_rows(x: Input | Source, rows: Tensor) -> Input:
    """Return the raw examples at ``rows``: images and tables on the CPU, texts on their device."""
    if isinstance(x, dict):
        return {key: part[rows.to(part.device)] for key, part in x.items()}
    if isinstance(x, Tensor):
        return x[rows.to(x.device)].cpu()
    read: Any = getattr(x, "batch", None)
    return read(rows).cpu() if read is not None else torch.stack([x[int(i)] for i in rows]).cpu()


@dataclass(frozen=True)
class RandomTransplant:
    """Give each example of a batch all of these properties of a random other example, with probability ``p``.

    All properties come from the same donor, so that no property of the list predicts the label; labels are kept.
    """

    transplants: tuple[Transplant, ...]
    p: float = 1.0
    static: ClassVar[bool] = True

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...

    @overload
    def __call__(self, x: dict[str, Tensor]) -> dict[str, Tensor]: ...

    def __call__(self, x: Any) -> Any:
        """Return the batch with transplanted properties."""
        first = x["input_ids"] if isinstance(x, dict) else x
        order = torch.randperm(len(first), device=first.device)
        result, donors = x, map_input(lambda part: part[order], x)
        for transplant in self.transplants:
            result = transplant(result, donors)
        chosen = torch.rand(len(first), device=first.device) < self.p

        def choose(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(chosen.view(-1, *[1] * (old.dim() - 1)), new, old)

        return {key: choose(result[key], x[key]) for key in x} if isinstance(x, dict) else choose(result, x)


def _list_word_transplants(
    split: Split, spelling: TokenSpelling | None, include: Sequence[str] = ()
) -> dict[str, Transplant]:
    """Return the words, ends and lengths of texts as properties; words to include however rare they are."""
    x: Any = split.x
    presence = find_words(split, spelling, include=include)
    words = [Transplant(word.name, "word", WordExchange(word)) for word in presence.words]
    others = list_exchanges(x, presence.vocabulary, *((1,) if include else ()))
    return {transplant.name: transplant for transplant in (*words, *(Transplant(o.name, "word", o) for o in others))}


def _simple_properties(channels: int) -> list[Transplant]:
    mean = Transplant("the mean color" if channels > 1 else "the brightness", "simple", _shift_mean)
    color = [Transplant("the color", "simple", _replace_color)] if channels == 3 else []
    return [
        *color,
        mean,
        Transplant("the texture", "simple", _exchange_amplitudes),
        Transplant("the contrast", "simple", _scale_contrast),
        Transplant("the low frequencies", "simple", lambda x, d: x - _average_cells(x) + _average_cells(d)),
        Transplant("the high frequencies", "central", lambda x, d: _average_cells(x) + d - _average_cells(d)),
    ]


def _shift_mean(x: Tensor, donors: Tensor) -> Tensor:
    return x + donors.mean((-2, -1), keepdim=True) - x.mean((-2, -1), keepdim=True)


def _replace_color(x: Tensor, donors: Tensor) -> Tensor:
    """Give every pixel the donor's mean color, times the pixel's brightness relative to that of its image.

    Grey images keep their brightness if the donor is grey too: without a color, only the size of the bright parts would
    be exchanged, and a 0 has more ink than a 1.
    """
    brightness = x.mean(1, keepdim=True)
    colored = (
        brightness / brightness.mean((-2, -1), keepdim=True).clamp(min=MIN_SCALE) * donors.mean((-2, -1), keepdim=True)
    )
    is_grey = _is_grey(x) & _is_grey(donors)
    return torch.where(is_grey[:, None, None, None], x, colored)


def _is_grey(x: Tensor) -> Tensor:
    return (x.amax(1) == x.amin(1)).flatten(1).all(dim=1)


def _exchange_amplitudes(x: Tensor, donors: Tensor) -> Tensor:
    """Combine the phases of an image with the amplitudes of the donor: its texture and noise."""
    spectrum, other = (torch.fft.rfft2(v) for v in (x, donors))
    mean = torch.zeros_like(spectrum, dtype=torch.bool)
    mean[..., 0, 0] = True
    amplitude = torch.where(mean, spectrum.abs(), other.abs())
    combined: Tensor = torch.fft.irfft2(torch.polar(amplitude, spectrum.angle()), s=x.shape[-2:])
    return combined


def _scale_contrast(x: Tensor, donors: Tensor) -> Tensor:
    mean = x.mean((-3, -2, -1), keepdim=True)
    old, new = (v.std((-3, -2, -1), correction=0, keepdim=True) for v in (x, donors))
    return mean + (x - mean) * new / old.clamp(min=MIN_SCALE)


def _average_cells(x: Tensor) -> Tensor:
    """Return the low frequencies: means of a grid of cells, interpolated to the size of the image."""
    size = (x.shape[-2], x.shape[-1])
    return interpolate(adaptive_avg_pool2d(x, (min(GRID, size[0]), min(GRID, size[1]))), size=size, mode="bilinear")


def _feature(j: int) -> Callable[[Tensor, Tensor], Tensor]:
    def exchange(x: Tensor, donors: Tensor) -> Tensor:
        x = x.clone()
        x[:, j] = donors[:, j]
        return x

    return exchange


def _regions(height: int, width: int) -> list[Transplant]:
    regions: list[tuple[str, Kind, Tensor]] = [
        ("the frame", "outer", ~_rectangle(height, width, 1 / 8, 7 / 8, 1 / 8, 7 / 8))
    ]
    inside = central_region(height, width)
    regions += [("the periphery", "periphery", ~inside), ("the center", "central", inside)]
    for name, sides in {
        "left": (0, 1, 0, 0.5),
        "right": (0, 1, 0.5, 1),
        "top": (0, 0.5, 0, 1),
        "bottom": (0.5, 1, 0, 1),
    }.items():
        regions.append((f"the {name} half", "half", _rectangle(height, width, *sides)))
    for name, sides in {
        "left": (0, 1, 0, 0.25),
        "right": (0, 1, 0.75, 1),
        "top": (0, 0.25, 0, 1),
        "bottom": (0.75, 1, 0, 1),
    }.items():
        regions.append((f"the {name} band", "outer", _rectangle(height, width, *sides)))
    for size in (3, 4):
        for row in range(size):
            for column in range(size):
                outer = row in (0, size - 1) or column in (0, size - 1)
                cell = _rectangle(height, width, row / size, (row + 1) / size, column / size, (column + 1) / size)
                regions.append((_name_cell(row, column, size), "outer" if outer else "central", cell))
    return [
        Transplant(name, kind, _paste(mask), mask)
        for name, kind, mask in regions
        if bool(mask.any()) and not bool(mask.all())
    ]


def _name_cell(row: int, column: int, size: int) -> str:
    """Name a cell of a grid.

    Example:
        >>> _name_cell(0, 0, 4), _name_cell(1, 2, 3), _name_cell(1, 3, 4)
        ('the top left corner', 'the middle right ninth', 'the cell in row 2 and column 4 of 4 x 4')
    """
    if size == 3:
        return f"the {('upper', 'middle', 'lower')[row]} {('left', 'center', 'right')[column]} ninth"
    if row in (0, size - 1) and column in (0, size - 1):
        return f"the {'top' if row == 0 else 'bottom'} {'left' if column == 0 else 'right'} corner"
    return f"the cell in row {row + 1} and column {column + 1} of {size} x {size}"


def _rectangle(height: int, width: int, top: float, bottom: float, left: float, right: float) -> Tensor:
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[round(top * height) : round(bottom * height), round(left * width) : round(right * width)] = True
    return mask


def central_region(height: int, width: int) -> Tensor:
    """Return the pixels in an ellipse, half of the image, in which the object usually is, ``(height, width)``."""
    y, x = ((torch.arange(n) + 0.5) / n * 2 - 1 for n in (height, width))
    return y[:, None].square() + x.square() <= RADIUS**2


def _paste(mask: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    copies = {mask.device: mask}  # a captured CUDA graph cannot copy it from the CPU

    def paste(x: Tensor, donors: Tensor) -> Tensor:
        if x.device not in copies:
            copies[x.device] = mask.to(x.device)
        return torch.where(copies[x.device], donors, x)

    return paste
