r"""Tokens: does the model rely on a word, such as a negation or the name of a group of people?

The words are those of :mod:`spurless.data.words`: lists (negation, identity terms), each list as one and each of its
words alone, the most frequent words of the split, and the most frequent pairs of neighboring words. In pairs of texts,
a word in the first and the same word in the second text are two words. The statistic is the largest :math:`z` of
:mod:`spurless.auditing._overreliance` over all words that are associated with predictions. Null hypothesis: labels are
sampled from the calibrated probabilities. Severity: :math:`V(\text{word}, \hat y) - V(\text{word}, y)`, the
association of the word with predictions minus that with labels, at least 0.

Limits: it does not detect words that mislead only in combination. A rare word has a small severity however much it
misleads. If the spelling of tokens is unknown, they are named by number and lists are not tested.

Gururangan et al., "Annotation Artifacts in Natural Language Inference Data", NAACL 2018, arXiv:1803.02324; Gardner et
al., "Competency Problems: On Finding and Removing Artifacts in Language Data", EMNLP 2021, arXiv:2104.08646; for
identity terms, Dixon et al., "Measuring and Mitigating Unintended Bias in Text Classification", AIES 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spurless.auditing._context import AuditContext, make_finding, not_tested
from spurless.auditing._overreliance import find_overreliance, plot_bins, plot_ranking, why_not_testable
from spurless.core.findings import Finding
from spurless.data.words import WORD_LISTS, TokenSpelling, decode_text, find_words

NAME = "tokens"
QUESTION = "Does the model rely on a word, such as a negation or the name of a group of people?"
MIN_EFFECT = 0.25  # smallest severity that is flagged; as for image properties, p alone is small for many models
MAX_TEXTS, MAX_TEXT_LENGTH = 3, 240  # texts that are quoted, and characters of each


def audit_tokens(context: AuditContext, word_lists: Mapping[str, Sequence[str]] = WORD_LISTS) -> Finding:
    """Return the word with the largest over-reliance; without a spelling of tokens, words are named by number."""
    spelling = context.spelling
    reason = why_not_testable(context)
    if not isinstance(context.split.x, dict) or "input_ids" not in context.split.x:
        reason = "these examples are not texts"
    if reason is not None:
        return not_tested(NAME, f"Not tested: {reason}.")
    words = find_words(context.split, spelling, word_lists)
    if not words.names:
        return not_tested(NAME, "Not tested: no word is in some of the texts and not in others.")
    result = find_overreliance(context, words.present, NAME)
    if result is None:
        return not_tested(NAME, "Not tested: no word is associated with predictions.")
    name = words.names[result.best]
    flagged = result.p <= context.level and result.gap >= MIN_EFFECT
    present, label = words.present[:, result.best], context.split.groups.labels[result.label]
    where = "with" if result.bin else "without"
    rows = result.find_errors(context)
    figure = plot_bins(context, result, present, ["without", "with"], name)
    if rows and spelling is not None:
        figure = replace(figure, caption=f"{figure.caption} {_quote_errors(context, rows[:MAX_TEXTS], spelling)}")
    return make_finding(
        NAME,
        (result.p, result.gap, flagged),
        f"The model relies on {name}: it predicts {label} {where} it",
        "No word explains the errors",
        f"{int(present.sum())} of {len(context)} texts have {name}. "
        + result.describe(context, present, f"{where.capitalize()} {name}"),
        f"Add texts with {name} and other labels, or repair the model: neurontune without attributes, dfr or "
        "group-dro with the word as the attribute.",
        shortcut=name if flagged else None,
        numbers=result.numbers(len(words.names)),
        rows=rows,
        items=(figure, plot_ranking(result, words.names, "words")),
    )


def _quote_errors(context: AuditContext, rows: Sequence[int], spelling: TokenSpelling) -> str:
    labels, quotes = context.split.groups.labels, []
    for row in rows:
        text = decode_text(context.split, row, spelling)
        text = text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]} ..."
        label, predicted = labels[int(context.y[row])], labels[int(context.predicted[row])]
        quotes.append(f'{row}, label {label}, predicted {predicted}: "{text}"')
    return f"Errors: {'; '.join(quotes)}."
