"""Snow, frost, fog and spatter, generated from random numbers without image files.

Each function takes pixel values 0 to 255 as float64 ``(n, C, H, W)``, the parameters of a level and random numbers.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from spurless.data.corruptions import ops
from spurless.data.corruptions.blur import smear
from spurless.data.corruptions.ops import Level
from spurless.data.corruptions.rng import ImageRng, rng_for_images

WATER_RGB = (175.0, 238.0, 238.0)
MUD_RGB = (63.0, 42.0, 20.0)
MAX_DISTANCE = 20  # upper limit of distances inside a drop of water, in pixels


def snow(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Whiten the image and add motion-blurred flakes, once as they are and once rotated by 180 degrees.

    The level is mean and standard deviation of the noise, its zoom factor, the threshold below which there is no flake,
    radius and sigma of the motion blur, and the weight of the image against its whitened version.

    Deviations:
        The blurred flakes are not rounded to bytes.
    """
    mean, std, factor, threshold, radius, sigma, weight = level
    height, width = x.shape[-2:]
    noise = rng.normal("flakes", 1, height, width).mul_(std).add_(mean)
    flakes = ops.apply_matrices(noise, ops.zoom_matrix(height, factor), ops.zoom_matrix(width, factor))
    flakes = ops.floor_with_tolerance(torch.where(flakes < threshold, 0.0, flakes).clamp_(0, 1) * 255)
    flakes = smear(flakes, int(radius), sigma, 90 * rng.uniform("angle") - 135)
    whitened = torch.maximum(x, ops.luma(x) * 1.5 + 127.5)
    return weight * x + (1 - weight) * whitened + flakes + flakes.flip(-2, -1)


def frost(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Dim the image and add a random crop of an ice texture; the level is both weights and the texture scale.

    Deviations:
        The published textures are six photographs, of which the code uses five; ours are generated
        (:func:`frost_textures`).
    """
    image_weight, ice_weight, scale = level
    bank = frost_textures(scale).to(x.device)  # (5, 3, side, side)
    side = bank.shape[-1]
    texture = rng.integers("texture", len(bank))
    crop = []
    for axis, length in (("down", x.shape[-2]), ("right", x.shape[-1])):
        start = rng.integers(axis, max(1, side - length + 1))
        crop.append(ops.border_index(start[:, None] + torch.arange(length, device=x.device), side, "symmetric"))
    ice = bank[texture[:, None, None], :, crop[0][:, :, None], crop[1][:, None]].permute(0, 3, 1, 2)
    ice = ice.to(torch.float64)
    return image_weight * x + ice_weight * (ops.luma(ice) if x.shape[1] == 1 else ice)


def fog(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Add a plasma cloud and rescale to the image's maximum; the level is the cloud's strength and decay."""
    strength, decay = level
    height, width = x.shape[-2:]
    white = x.amax(dim=(1, 2, 3), keepdim=True)
    cloud = plasma(max(height, width), decay, rng)[:, None, :height, :width]
    return (x + 255 * strength * cloud) * (white / (white + 255 * strength))


def spatter(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Add drops of water (severities 1 to 3) or mud (4 and 5) on the lens.

    The level is mean and standard deviation of the noise, its smoothing sigma, the threshold below which the lens is
    dry, the strength of water or the sigma of mud, and 0 for water or 1 for mud.

    Deviations:
        The edge of a drop is the boundary of the wet region, while the published code uses Canny's edge detector;
        distances to it are exact, not chamfer distances.
    """
    mean, std, sigma, threshold, strength_or_sigma, is_mud = level
    noise = rng.normal("liquid", 1, *x.shape[-2:]).mul_(std).add_(mean)
    liquid = ops.gaussian_filter(noise, sigma)
    wet = liquid >= threshold
    if is_mud:
        cover = ops.gaussian_filter(wet.to(torch.float64), strength_or_sigma)
        cover = torch.where(cover < 0.8, 0.0, cover)
        return x * (1 - cover) + cover * ops.match_channels(MUD_RGB, x)
    film = ops.floor_with_tolerance(liquid.clamp(0, 1) * 255) * wet * _light_relief(wet)
    thickest = film.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1)  # avoids 0 / 0 on a dry lens
    return x + film / thickest * strength_or_sigma * ops.match_channels(WATER_RGB, x)


def plasma(side: int, decay: float, rng: ImageRng) -> Tensor:
    """Return clouds from 0 to 1 by midpoint displacement, ``(n, m, m)`` with m the next power of two.

    Borders are periodic. Each halving of the distance divides the displacement by ``decay`` squared, since the
    published code applies the decay twice.
    """
    m = 1 << (side - 1).bit_length()
    displacement = 2 * rng.uniform("cloud", m, m) - 1
    cloud = torch.zeros_like(displacement)
    step, amplitude = m, 1.0
    while step > 1:
        half = step // 2
        corner = cloud[:, ::step, ::step]
        across = corner + corner.roll(-1, 1)
        middle = (across + across.roll(-1, 2)) / 4 + amplitude * displacement[:, half::step, half::step]
        cloud[:, half::step, half::step] = middle
        top = (corner + corner.roll(-1, 2) + middle + middle.roll(1, 1)) / 4
        cloud[:, ::step, half::step] = top + amplitude * displacement[:, ::step, half::step]
        side_points = (corner + corner.roll(-1, 1) + middle + middle.roll(1, 2)) / 4
        cloud[:, half::step, ::step] = side_points + amplitude * displacement[:, half::step, ::step]
        step, amplitude = half, amplitude / decay**2
    cloud -= cloud.amin(dim=(1, 2), keepdim=True)
    return cloud / cloud.amax(dim=(1, 2), keepdim=True)


def distance_to_mask(mask: Tensor, limit: int) -> Tensor:
    """Return the distance of each pixel to the nearest pixel of the mask, at most ``limit``."""
    squared = torch.where(mask, 0.0, float(limit**2)).to(torch.float64)
    for axis in (-1, -2):  # first within the row, then over rows
        n = squared.shape[axis]
        best = squared.clone()
        for k in range(1, min(limit, n)):
            for to, start in ((k, 0), (0, k)):
                window = best.narrow(axis, to, n - k)
                torch.minimum(window, squared.narrow(axis, start, n - k) + k**2, out=window)
        squared = best
    return squared.sqrt_()


def _light_relief(wet: Tensor) -> Tensor:
    """Return the light through drops, 0 to 255: the equalised distance to their edge, embossed.

    All values are integers, as in the published code.
    """
    height, width = wet.shape[-2:]
    eroded = wet
    for axis, n in ((-2, height), (-1, width)):
        index = torch.arange(n, device=wet.device)
        for k in (-1, 1):
            eroded = eroded & wet.index_select(axis, ops.border_index(index + k, n, "nearest"))
    depth = ops.floor_with_tolerance(_mean_filter(distance_to_mask(wet & ~eroded, MAX_DISTANCE))).long()
    lit = _emboss(_equalise(depth).to(torch.float64)).clamp_(0, 255)
    return (_mean_filter(lit) + 0.5).floor_()  # ninths cannot be ties


def _equalise(depth: Tensor) -> Tensor:
    """Equalise the histogram of depths ``(n, 1, H, W)``, 0 to ``MAX_DISTANCE``, to the range 0 to 255."""
    n, total = len(depth), depth[0].numel()
    row = torch.arange(n, device=depth.device).view(-1, 1, 1, 1) * (MAX_DISTANCE + 1)
    counts = torch.bincount((row + depth).flatten(), minlength=n * (MAX_DISTANCE + 1)).view(n, -1)
    cumulative = counts.cumsum(dim=1)
    lowest = counts.gather(1, (counts > 0).long().argmax(dim=1, keepdim=True))
    rest = (total - lowest).clamp(min=1)
    table = ((cumulative - lowest).clamp(min=0) * 510 + rest) // (2 * rest)
    return table.flatten()[row + depth]


def _mean_filter(x: Tensor) -> Tensor:
    third = torch.ones(3, dtype=torch.float64)
    return (
        ops.apply_matrices(x, *(ops.filter_matrix(side, torch.arange(-1, 2), third, "mirror") for side in x.shape[-2:]))
        / 9
    )


def _emboss(x: Tensor) -> Tensor:
    """Filter with the emboss kernel ``[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]``."""
    height, width = x.shape[-2:]
    rows = ops.border_index(torch.arange(-1, height + 1), height, "mirror").to(x.device)
    columns = ops.border_index(torch.arange(-1, width + 1), width, "mirror").to(x.device)
    padded = x.index_select(2, rows).index_select(3, columns)
    total = torch.zeros_like(x)
    for i, weights in enumerate(((-2, -1, 0), (-1, 1, 1), (0, 1, 2))):
        for j, weight in enumerate(weights):
            total.add_(padded[:, :, i : i + height, j : j + width], alpha=weight)
    return total


N_TEXTURES = 5
TEXTURE_SIDE = 640
FANS_BY_LENGTH = {300: 6, 170: 14, 90: 32}  # number of fans of feathers per texture, by length in pixels

FEATHERS_PER_FAN = 4

MAX_BARBS = 200
DARK_RGB = (38.0, 52.0, 74.0)
WHITE_RGB = (232.0, 241.0, 250.0)


@lru_cache(maxsize=4)
def frost_textures(scale: float = 1.0) -> Tensor:
    """Return five ice textures as uint8 ``(5, 3, side, side)``, scaled from 640 pixels a side.

    Drawing them takes seconds, once per process. They are drawn on the CPU, so that all devices have the same bits.
    """
    full = _full_size_textures()
    if scale == 1:
        return full
    size = (round(TEXTURE_SIDE * scale), round(TEXTURE_SIDE * scale))
    return ops.to_bytes(torch.nn.functional.interpolate(full.double(), size=size, mode="bilinear", antialias=True))


@lru_cache
def _full_size_textures() -> Tensor:
    return torch.stack([_draw_texture(rng_for_images(torch.tensor([k]), 0, "frost")) for k in range(N_TEXTURES)])


def _draw_texture(rng: ImageRng) -> Tensor:
    """Return one texture: fans of feathers over a grainy film of uneven thickness, on a dark pane."""
    film = _cloud(rng, 90, 36, 14)
    ice = 0.1 + 0.3 * film**2 + 0.4 * film**3 * _cloud(rng, 6, 3, 1.2) ** 3
    bend = torch.stack([_noise(rng, f"bend {axis}", 9) for axis in "yx"]) * 3  # bends straight lines
    lengths = [length for length, count in FANS_BY_LENGTH.items() for _ in range(count)]
    position = rng.uniform("fan", len(lengths), 3)[0]
    shape = rng.uniform("feather", len(lengths), FEATHERS_PER_FAN, 5)[0]
    barb_lengths = rng.uniform("barbs", len(lengths), FEATHERS_PER_FAN, 2, MAX_BARBS)[0]
    for fan, length in enumerate(lengths):
        row, column, turn = position[fan].tolist()
        for k in range(FEATHERS_PER_FAN):  # the feathers of a fan start at one point at different angles
            start = (row * TEXTURE_SIDE, column * TEXTURE_SIDE, 2 * math.pi * turn + 0.5 * k)
            _draw_feather(ice, bend, start, length, (shape[fan, k], barb_lengths[fan, k]))
    ice = (ice * (1 + 0.18 * _noise(rng, "grain", 0.7))).clamp(0, 1)
    dark, white = (torch.tensor(rgb, dtype=torch.float64).view(3, 1, 1) for rgb in (DARK_RGB, WHITE_RGB))
    return ops.to_bytes(dark + (white - dark) * ice)


def _noise(rng: ImageRng, purpose: str, sigma: float) -> Tensor:
    """Return smooth noise of standard deviation 1."""
    noise = ops.gaussian_filter(rng.normal(purpose, TEXTURE_SIDE, TEXTURE_SIDE)[0], sigma, "symmetric")
    return noise / noise.std()


def _cloud(rng: ImageRng, *sigmas: float) -> Tensor:
    """Return smooth noise of several scales, transformed to a uniform distribution on 0 to 1."""
    total = torch.stack([_noise(rng, f"cloud {sigma}", sigma) / (1 + k) for k, sigma in enumerate(sigmas)]).sum(dim=0)
    return 0.5 * (1 + torch.erf(total / total.std() / math.sqrt(2)))


def _draw_feather(
    ice: Tensor, bend: Tensor, start: tuple[float, float, float], max_length: int, random: tuple[Tensor, Tensor]
) -> None:
    """Draw one feather onto the ice: a bent spine with barbs on both sides, and barbs on the barbs."""
    (rotation, size, slope, curvature, brightness), barb_lengths = random[0].tolist(), random[1]
    row, column, turn = start[0], start[1], start[2] + 0.3 * rotation
    length, slant = max_length * (0.4 + 0.6 * size), math.radians(38 + 24 * slope)
    window = (_feather_window(row, length, math.sin(turn)), _feather_window(column, length, math.cos(turn)))
    canvas = ice[window]
    y = torch.arange(TEXTURE_SIDE)[window[0], None] - row + bend[0][window]
    x = torch.arange(TEXTURE_SIDE)[window[1]] - column + bend[1][window]
    along = x * math.cos(turn) + y * math.sin(turn)
    across = y * math.cos(turn) - x * math.sin(turn) + 0.5 * (curvature - 0.5) * along**2 / length
    foot, barb_position = _barb_coordinates(along, across.abs(), slant)
    spacing, width = 3 + length * 0.022, 0.8 + length / 300
    part = (foot / length).clamp(0, 1)
    barb = (foot / spacing).round().clamp(0, MAX_BARBS - 1).long()
    barb_length = length * 0.55 * part.sqrt() * (1 - part) * (0.3 + barb_lengths[(across > 0).long(), barb])
    fading = (1 - barb_position / barb_length.clamp(min=1e-6)).clamp(0, 1).sqrt()
    offset = _offset_to_grid(foot, spacing) * math.sin(slant)
    twig = _offset_to_grid(_barb_coordinates(barb_position, offset.abs(), slant)[0], 0.6 * spacing) * math.sin(slant)
    barbs = fading * torch.maximum(_line(offset, width), 0.15 + 0.45 * _line(twig, 0.8 * width))
    spine = _line(across, 1.5 * width) * ((along > 0) & (along < length)) * (1 - part).sqrt()
    feather = (0.35 + 0.5 * brightness) * torch.maximum(barbs, spine)
    canvas.copy_(torch.maximum(canvas, feather) + 0.35 * torch.minimum(canvas, feather))


def _feather_window(start: float, length: float, towards: float) -> slice:
    """Return the rows or columns that a feather may cover: its spine and a margin."""
    margin = 0.35 * length + 12
    low, high = sorted((start, start + length * towards))
    return slice(max(0, int(low - margin)), max(0, int(high + margin)))


def _barb_coordinates(along: Tensor, across: Tensor, slant: float) -> tuple[Tensor, Tensor]:
    """Return the foot of the barb through each point on the spine, and the position of the point on the barb."""
    return along - across / math.tan(slant), across / math.sin(slant)


def _offset_to_grid(position: Tensor, spacing: float) -> Tensor:
    """Return the signed distance to the nearest multiple of ``spacing``."""
    return position - spacing * (position / spacing).round()


def _line(offset: Tensor, width: float) -> Tensor:
    """Return a line of the given width: 1 in its middle, 0 outside."""
    return (1 - offset.abs() / width).clamp(0, 1)
