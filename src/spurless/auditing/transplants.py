r"""Transplants: does the prediction follow one property of an example of another class?

One property (:mod:`spurless.data.transplants`) of a held-out example :math:`i` is replaced by that of a donor
:math:`j`; both are predicted correctly. With the prediction :math:`o_{ij}` after the transplant and :math:`K` labels,
the *follow rate* is :math:`P(o_{ij} = y_j \mid y_j \ne y_i)`. Donors of the same class are the control: what they
change is damage by the operation. The statistic is

.. math:: T = P(o_{ij} = y_j \mid y_j \ne y_i) - \frac{1}{K - 1} P(o_{ij} \ne y_i \mid y_j = y_i) .

No example has to break the shortcut, so this works if held-out data are as biased as training data. All properties are
screened on a few pairs; the best are measured again on other examples, so that the search does not bias the result.
Null hypothesis: predictions are independent of the label of the donor; labels are permuted among donors, and the
largest statistic is compared with the largest of every permutation. Severity: the largest :math:`T`, at least 0.

Rule: a property is flagged if :math:`T` reaches ``MIN_EFFECT`` of its kind. *Simple* properties (color, contrast,
texture) and *outer* regions (bands, corners, the frame) are shortcuts. The low frequencies contain the layout of an
image, and the texture how much there is in it, so their thresholds are higher. The object may extend into an outer
region, so the part of it outside of the central ellipse must be followed as often; otherwise the region is only
suspicious. So is the *periphery*, which is half of an image. *Central* regions, halves, high frequencies and the
features of a table are reported as use: the label may legitimately be in them. Words have a rule of their own, see
:mod:`spurless.auditing._word_transplants`.

Limits: a shortcut in the center, in a half of the image or at changing positions, an object, or a person's gender is
not in the list of properties. An object at the border of the image is a false alarm. If an example has several
shortcuts that agree, a transplant of one of them changes few predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext, label_name, make_finding, not_tested
from spurless.auditing._figures import Axis, Series, bars
from spurless.auditing._permutation import p_value
from spurless.auditing._word_transplants import find_shortcut_word, sample_word_donors, select_words
from spurless.auditing.hidden_regions import make_heat_transplants
from spurless.auditing.swapped_backgrounds import SwappedPredictions, compute_following
from spurless.core.figures import Figure, Picture
from spurless.core.findings import Audit, Finding
from spurless.core.progress import progress_reporter
from spurless.data.split import Split
from spurless.data.transplants import (
    Kind,
    Transplant,
    central_region,
    list_transplants,
    read_rows,
    sample_donors,
    transplant_split,
)
from spurless.data.words import decode_text
from spurless.explain.overlays import encode_grid, has_images, to_rgb
from spurless.metrics.intervals import wilson_intervals
from spurless.train.evaluate import predict
from spurless.train.transplant_accuracy import combine_transplants

NAME = "transplants"
QUESTION = (
    "Does the prediction follow a color, a border, a corner or a word that comes from an example of another class?"
)
MIN_EFFECT: Mapping[Kind, float] = {"simple": 0.35, "outer": 0.42, "periphery": 0.2}
"""Smallest statistic that is flagged. In development runs, which are not recorded (seeds from 1000), models without a
shortcut reached 0.29 (simple), 0.22 (outer; 0.40 if one half of the image is the object) and 0.29 (periphery, of
airplanes and cars; 0.19 elsewhere)."""
LAYOUT = "the low frequencies"
MIN_EFFECT_OF = {LAYOUT: 0.5, "the texture": 0.55, "the color": 0.3}
"""The same for three simple properties, which reached 0.40, 0.50 (if the images of one class are empty) and 0.22."""
MAX_POOL = 320  # correctly predicted examples, about as many of every class
MAX_TEXTS, MAX_WORD_PAIRS = 2000, 200  # the same for texts, of which few have a word, and pairs of each word
SCREENED_EXAMPLES = 64  # of the pool, for the screening of all properties
MIN_EXAMPLES = 20  # correctly predicted examples, of at least two classes
MAX_MEASURED = 12  # properties that are measured again: those with the highest follow rates
MIN_SCREENED_RATE = 0.1  # follow rate in the screening from which a property is measured again
SIMILAR = 0.8  # of the largest effect, from which a more specific property is named instead
PARTIAL_OBJECT = "A part of the object may be there, so this is suspicious only."
MAX_SET = 3  # features of a table that are exchanged together
FLAGGED_PREFIX = "flagged: "
MAX_PAIRS, MAX_BARS = 10, 12  # pairs in the picture, bars in the chart
MAX_QUOTES, MAX_QUOTE_LENGTH = 3, 240  # texts that are quoted, and characters of each


@dataclass(frozen=True, eq=False)
class FollowRate:
    """How often predictions follow one property."""

    transplant: Transplant
    followed: int  # pairs with a donor of another class that get the donor's class
    pairs: int
    changed: int  # pairs with a donor of the same class whose prediction changes
    controls: int
    effect: float  # the statistic
    swapped: SwappedPredictions

    @property
    def name(self) -> str:
        """The name of the property."""
        return self.transplant.name

    @property
    def rate(self) -> float:
        """The follow rate."""
        return self.followed / max(1, self.pairs)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the follow rate."""
        low, high = wilson_intervals(self.followed, max(1, self.pairs))
        return float(low), float(high)

    @property
    def is_candidate(self) -> bool:
        """Whether the property can be flagged; of others, only use is reported."""
        return self.transplant.kind in MIN_EFFECT or self.transplant.kind == "word"

    @property
    def is_large(self) -> bool:
        """Whether the effect is large enough to be flagged."""
        return self.effect >= MIN_EFFECT_OF.get(self.name, MIN_EFFECT.get(self.transplant.kind, torch.inf))

    @property
    def is_broad(self) -> bool:
        """Whether the property contains others."""
        return self.name == LAYOUT or self.transplant.kind == "periphery"


def audit_transplants(context: AuditContext) -> Finding:
    """Return the property that predictions follow most."""
    transplants = list_transplants(context.split, context.spelling)
    if not transplants:
        return not_tested(NAME, "Not tested: these examples are not images, texts or rows of numbers.")
    is_text = isinstance(context.split.x, dict)
    pool = sample_pool(context, MAX_TEXTS if is_text else MAX_POOL)
    y = pool.y.cpu()
    if len(pool) < MIN_EXAMPLES or len(torch.unique(y)) < 2:
        return not_tested(NAME, f"Not tested: the model predicts only {len(pool)} examples of two classes correctly.")
    if is_text:
        screened = measured = measure_words(context, pool, select_words(context, transplants))
    else:
        heat = make_heat_transplants(context, pool) if has_images(pool) else ()
        screened, measured = measure_follow_rates(context, pool, [*transplants.values(), *heat])
    if not screened:
        return not_tested(NAME, "Not tested: no word is in enough of the texts and associated with predictions.")
    candidates = [rate for rate in measured if rate.is_candidate]
    p = _compute_p_value(context, candidates, y) if candidates else 1.0
    flagged = _flag(context, pool, candidates) if p <= context.level else []
    best = flagged[0] if flagged else max(measured, key=lambda rate: rate.effect, default=None)
    severity = flagged[0].effect if flagged else max((rate.effect for rate in candidates), default=0.0)
    name = best.name if best else ""
    is_doubtful = bool(flagged) and not _excludes_object(context, pool, flagged[0])
    return make_finding(
        NAME,
        (p, severity, bool(flagged)),
        f"The model follows {name}: given that of another class, it predicts that class",
        "The model does not follow any of the simple properties and outer regions",
        _describe(context, pool, best, screened, p),
        f"Look at the pairs. If the label must not depend on it, run spurless fix with --property '{name}'."
        if is_doubtful
        else "Vary it in the training data, or repair the model: spurless fix trains with this property transplanted "
        "from random other examples, and ranks repairs by the accuracy under such transplants.",
        shortcut=name if flagged else None,
        doubt=PARTIAL_OBJECT if is_doubtful else "",
        numbers=_collect_numbers(screened, measured, flagged),
        items=_draw(context, pool, best, screened, measured),
    )


def _flag(context: AuditContext, pool: Split, candidates: Sequence[FollowRate]) -> list[FollowRate]:
    """Return the candidates that are shortcuts by the rule of their kind."""
    words = [rate for rate in candidates if rate.transplant.kind == "word"]
    if words:
        name = find_shortcut_word(
            context, {rate.name: rate.transplant for rate in words}, {rate.name: rate.rate for rate in words}
        )
        return [rate for rate in words if rate.name == name]
    flagged = select_specific([rate for rate in candidates if rate.is_large])
    flagged = [rate for rate in flagged if not _is_explained(context, pool, rate, flagged)]
    return [rate for rate in flagged if _excludes_object(context, pool, rate)] or flagged


def flagged_properties(audit: Audit, *, doubtful: bool = True) -> tuple[str, ...]:
    """Return the properties that an audit flags, the first of which names the shortcut.

    Args:
        audit: the audit.
        doubtful: include properties in which a part of the object may be.
    """
    findings = (f for f in audit.flagged if f.audit == NAME and (doubtful or not f.doubt))
    numbers = next((finding.numbers for finding in findings), {})
    return tuple(key.removeprefix(FLAGGED_PREFIX) for key in numbers if key.startswith(FLAGGED_PREFIX))


def select_specific(rates: Sequence[FollowRate]) -> list[FollowRate]:
    """Return the properties that explain all others: one simple property at most, and regions that do not overlap.

    The first is the most specific of those with nearly the largest effect: the smallest region, or a simple property.
    The low frequencies and the periphery, which contain other properties, only count if nothing else is flagged.
    """
    rates = [rate for rate in rates if not rate.is_broad] or rates
    if not rates:
        return []
    largest = max(rate.effect for rate in rates)
    first = min((rate for rate in rates if rate.effect >= SIMILAR * largest), key=_specificity)
    selected = [first]
    for rate in sorted(rates, key=lambda rate: -rate.effect):
        if not any(_overlaps(rate, other) for other in selected):
            selected.append(rate)
    return selected


def _specificity(rate: FollowRate) -> tuple[float, float]:
    """Return a key that sorts small regions first, then simple properties."""
    region = rate.transplant.region
    return float(region.float().mean()) if region is not None else 1.0, -rate.effect


def _overlaps(one: FollowRate, other: FollowRate) -> bool:
    """Return whether two properties share a pixel, or neither is a region."""
    a, b = one.transplant.region, other.transplant.region
    if a is None and b is None:
        return True
    return a is not None and b is not None and bool((a & b).any())


def _is_explained(context: AuditContext, pool: Split, rate: FollowRate, flagged: Sequence[FollowRate]) -> bool:
    """Return whether a simple property is only followed because it changes the flagged regions."""
    regions = [other.transplant.region for other in flagged if other.transplant.region is not None]
    if rate.transplant.region is not None or not regions:
        return False
    changed, apply = torch.stack(regions).any(dim=0), rate.transplant.apply
    elsewhere = replace(rate.transplant, apply=lambda x, donors: torch.where(changed, x, apply(x, donors)))
    return not measure_follow_rate(context, pool, rate.swapped.index, elsewhere, "measurement").is_large


def _excludes_object(context: AuditContext, pool: Split, rate: FollowRate) -> bool:
    """Return whether a property is followed that cannot contain a part of the object.

    Of an outer region, this is its part outside of the central ellipse.
    """
    region = rate.transplant.region
    if region is None or rate.transplant.kind == "periphery":
        return region is None
    outside = region & ~central_region(*region.shape)
    rest = replace(rate.transplant, apply=lambda x, donors: torch.where(outside, donors, x))
    return measure_follow_rate(context, pool, rate.swapped.index, rest, "measurement").is_large


def sample_pool(context: AuditContext, limit: int = MAX_POOL) -> Split:
    """Return up to ``limit`` correctly predicted examples, about as many of every class, read into memory."""
    generator = context.seeds.generator(NAME, "pool")
    correct = (~context.incorrect).nonzero().flatten()
    correct = correct[torch.randperm(len(correct), generator=generator)]
    y = context.y[correct]
    # the rank of an example in its class, in random order: the first of every class come first
    rank = torch.empty_like(y)
    for label in torch.unique(y):
        rows = (y == label).nonzero().flatten()
        rank[rows] = torch.arange(len(rows))
    rows = correct[rank.argsort(stable=True)[:limit]]
    rows = rows[torch.randperm(len(rows), generator=generator)]
    rest = replace(context.split, x=context.split.y, hidden=None).select(rows.to(context.split.y.device))
    return replace(rest, x=read_rows(context.split.x, rows))


def combine_features(rates: Sequence[FollowRate]) -> list[Transplant]:
    """Return the exchanges of the two and of the three features that are followed most, together."""
    best = [rate.transplant for rate in rates if rate.transplant.kind == "feature"][:MAX_SET]
    sets = [best[:n] for n in range(2, len(best) + 1)]
    return [replace(combine_transplants(part), name=" and ".join(t.name for t in part)) for part in sets]


def measure_follow_rates(
    context: AuditContext, pool: Split, transplants: Sequence[Transplant]
) -> tuple[list[FollowRate], list[FollowRate]]:
    """Screen all transplants on a few examples, and measure the best again on the others; both the best first."""
    n = len(pool)
    few = min(SCREENED_EXAMPLES, max(MIN_EXAMPLES, n // 2))
    first = torch.arange(few)
    rest = torch.arange(few, n) if n - few >= MIN_EXAMPLES else torch.arange(n)
    report = progress_reporter("properties", len(transplants) + MAX_MEASURED)
    screened = []
    for transplant in transplants:
        screened.append(measure_follow_rate(context, pool, first, transplant, "screening", controls=False))
        report(len(screened))
    screened.sort(key=lambda rate: -rate.effect)
    sets = combine_features(screened)
    screened += [measure_follow_rate(context, pool, first, t, "screening", controls=False) for t in sets]
    screened.sort(key=lambda rate: -rate.effect)
    promising = [rate for rate in screened if rate.rate >= MIN_SCREENED_RATE]
    candidates = [rate for rate in promising if rate.is_candidate]
    others = [rate for rate in promising if not rate.is_candidate]
    chosen = [*candidates[:MAX_MEASURED], *others[: MAX_MEASURED // 6]]
    measured = [measure_follow_rate(context, pool, rest, rate.transplant, "measurement") for rate in chosen]
    report(len(transplants) + MAX_MEASURED)
    return screened, sorted(measured, key=lambda rate: -rate.effect)


def measure_words(context: AuditContext, pool: Split, transplants: Mapping[str, Transplant]) -> list[FollowRate]:
    """Return the follow rates of words, the highest first; receiver and donor differ in the word."""
    report, rates = progress_reporter("words", len(transplants)), []
    seeds = context.seeds.child(f"{NAME} words")
    for number, transplant in enumerate(transplants.values(), start=1):
        rows, donors = sample_word_donors(pool, torch.arange(len(pool)), transplant, seeds, MAX_WORD_PAIRS)
        if len(rows) >= MIN_EXAMPLES:
            rates.append(follow_donors(context, pool, transplant, rows, donors))
        report(number)
    return sorted(rates, key=lambda rate: -rate.effect)


def measure_follow_rate(
    context: AuditContext,
    pool: Split,
    rows: Tensor,
    transplant: Transplant,
    purpose: str,
    *,
    controls: bool = True,
) -> FollowRate:
    """Transplant one property into the examples ``rows`` of the pool, from other and from the same classes."""
    y, seeds = pool.y.cpu(), context.seeds.child(f"{NAME} {purpose}")
    donors = torch.stack([sample_donors(y, seeds, same_class=same)[rows] for same in (False, True)[: 1 + controls]])
    return follow_donors(context, pool, transplant, rows, donors)


def follow_donors(
    context: AuditContext, pool: Split, transplant: Transplant, rows: Tensor, donors: Tensor
) -> FollowRate:
    """Return how often predictions follow given donors: of other classes, and of the same class if there are two rows.

    Args:
        context: the model and its predictions.
        pool: correctly predicted examples.
        transplant: the property to transplant.
        rows: the receivers in the pool, ``(n,)``.
        donors: the donors in the pool, ``(1 or 2, n)``.
    """
    y = pool.y.cpu()
    device = next((p.device for p in context.model.parameters()), torch.device("cpu"))
    split = transplant_split(pool, rows.repeat(len(donors)), donors.flatten(), transplant)
    predicted = predict(context.model, split, device).view_as(donors)
    swapped = SwappedPredictions(rows, donors, predicted)
    other = y[donors[0]] != y[rows]
    followed, pairs = int((predicted[0] == y[donors[0]])[other].sum()), int(other.sum())
    controls = len(rows) if len(donors) > 1 else 0
    changed = int((predicted[1] != y[rows]).sum()) if controls else 0
    effect = float(compute_following(swapped, y[rows], y[None], context.logits.shape[1]))
    return FollowRate(transplant, followed, pairs, changed, controls, effect, swapped)


def _compute_p_value(context: AuditContext, rates: Sequence[FollowRate], y: Tensor) -> float:
    """Return the p-value of the largest statistic over all measured properties."""
    generator, n_classes = context.seeds.generator(NAME, "permutations"), context.logits.shape[1]
    labels = torch.stack([y[torch.randperm(len(y), generator=generator)] for _ in range(context.permutations)])
    null = torch.stack([compute_following(r.swapped, y[r.swapped.index], labels, n_classes) for r in rates])
    return p_value(max(rate.effect for rate in rates), null.amax(dim=0))


def _describe(
    context: AuditContext, pool: Split, best: FollowRate | None, screened: Sequence[FollowRate], p: float
) -> str:
    sampled = (
        f"{len(screened)} properties were transplanted between {len(pool):,} of the "
        f"{int((~context.incorrect).sum()):,} correctly predicted examples."
    )
    if best is None:
        return f"{sampled} None is followed in {100 * MIN_SCREENED_RATE:g} % of the pairs or more."
    low, high = (100 * bound for bound in best.interval)
    note = "" if best.is_candidate else " The label may legitimately be there, so this is reported as use only."
    return (
        f"{sampled} With {best.name} of an example of another class, {best.followed} of {best.pairs} examples "
        f"are predicted as that class, {100 * best.rate:.0f} % (95 % interval {low:.0f} to {high:.0f}). With that of "
        f"an example of the same class, {best.changed} of {best.controls} predictions change. The difference, "
        f"corrected for chance, is {best.effect:.2f} (p = {p:.3g}).{note}"
    )


def _collect_numbers(
    screened: Sequence[FollowRate], measured: Sequence[FollowRate], flagged: Sequence[FollowRate]
) -> Mapping[str, float]:
    numbers = {f"{FLAGGED_PREFIX}{rate.name}": rate.effect for rate in flagged}
    numbers |= {f"screened: {rate.name}": rate.rate for rate in screened}
    for rate in measured:
        numbers |= {
            f"follow rate: {rate.name}": rate.rate,
            f"effect: {rate.name}": rate.effect,
            f"pairs: {rate.name}": float(rate.pairs),
        }
    return numbers


def _plot(screened: Sequence[FollowRate], measured: Sequence[FollowRate]) -> Figure:
    again = {rate.name: rate for rate in measured}
    rates = sorted((again.get(rate.name, rate) for rate in screened), key=lambda rate: -rate.rate)[:MAX_BARS]
    value, low, high = (
        [100 * v for v in column] for column in zip(*((r.rate, *r.interval) for r in rates), strict=True)
    )
    names = [rate.name + ("" if rate.is_candidate else " *") for rate in rates]
    caption = (
        "How often a prediction becomes the class of the example that the property comes from, with 95 % intervals. "
        "* The label may legitimately be there."
    )
    series = [Series("follow rate", value, "@bad", low, high)]
    axis = Axis("% of predictions that follow", (0, 100))
    return bars(("What the model follows", caption), names, series, values=axis, horizontal=True)


def _draw(
    context: AuditContext,
    pool: Split,
    best: FollowRate | None,
    screened: Sequence[FollowRate],
    measured: Sequence[FollowRate],
) -> tuple[Figure | Picture, ...]:
    """Draw the follow rates, and pairs whose prediction follows the property."""
    figure = _plot(screened, measured)
    pairs = _list_pairs(pool, best) if best is not None else torch.zeros(0, 2)
    if best is None or not len(pairs):
        return (figure,)
    if isinstance(pool.x, dict) and context.spelling is not None:
        quotes = _quote_pairs(context, pool, best, pairs[:MAX_QUOTES])
        return (replace(figure, caption=f"{figure.caption} {quotes}"),)
    return (figure, *(_draw_pairs(context, pool, best, pairs[:MAX_PAIRS]) if has_images(pool) else ()))


def _list_pairs(pool: Split, rate: FollowRate) -> Tensor:
    """Return receiver and donor of the pairs whose prediction follows the property, ``(n, 2)``."""
    y, swapped = pool.y.cpu(), rate.swapped
    donors = swapped.behind[0]
    follows = (swapped.predicted[0] == y[donors]) & (y[donors] != y[swapped.index])
    return torch.stack([swapped.index[follows], donors[follows]], dim=1)


def _quote_pairs(context: AuditContext, pool: Split, best: FollowRate, pairs: Tensor) -> str:
    """Return texts before and after the transplant, with both predictions."""
    assert context.spelling is not None
    rows, donors = pairs.unbind(dim=1)
    changed, y = transplant_split(pool, rows, donors, best.transplant), pool.y.cpu()
    quotes = []
    for number, (i, j) in enumerate(pairs.tolist()):
        before, after = decode_text(pool, i, context.spelling), decode_text(changed, number, context.spelling)
        quotes.append(
            f"“{before[:MAX_QUOTE_LENGTH]}” is predicted {label_name(context, int(y[i]))}, "
            f"“{after[:MAX_QUOTE_LENGTH]}” {label_name(context, int(y[j]))}."
        )
    return " ".join(quotes)


def _draw_pairs(context: AuditContext, pool: Split, best: FollowRate, pairs: Tensor) -> tuple[Picture, ...]:
    """Draw an image, its donor, and the image after the transplant, in a row for each pair."""
    if not isinstance(pool.x, Tensor):
        return ()
    (rows, givers), y = pairs.unbind(dim=1), pool.y.cpu()
    images = torch.cat([pool.x[rows], pool.x[givers], best.transplant(pool.x[rows], pool.x[givers])])
    if images.is_floating_point():
        low, high = min(0.0, float(images.min())), max(1.0, float(images.max()))
        images = 255 * (images - low) / (high - low)
    parts = torch.split(to_rgb(images.float().round().to(torch.uint8)), len(rows))
    lines = [
        f"{number}: predicted {label_name(context, int(y[i]))}; with {best.name} of the second image, "
        f"predicted {label_name(context, int(y[j]))}."
        for number, (i, j) in enumerate(zip(rows, givers, strict=True), start=1)
    ]
    return (
        Picture(
            f"Predictions that follow {best.name}",
            "\n".join(lines),
            encode_grid(
                dict(zip(("image", "donor", "transplanted"), parts, strict=True)),
                [str(n + 1) for n in range(len(rows))],
            ),
            f"{len(rows)} rows of 3 columns: an image, its donor, and the image after the transplant.",
        ),
    )
