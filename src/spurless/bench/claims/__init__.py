"""The table of claims: to add one, write it in its paper's file and add the file here."""

from __future__ import annotations

from spurless.bench.claims import avp, dcwp, large_lr, masktune, neurontune, theory
from spurless.bench.claims.base import Bar, Claim, Verdict, judge
from spurless.core.errors import UnknownName

CLAIMS: dict[str, Claim] = {
    claim.id: claim for paper in (theory, masktune, neurontune, dcwp, avp, large_lr) for claim in paper.CLAIMS
}


def claim_named(name: str) -> Claim:
    """Return the claim of that id."""
    try:
        return CLAIMS[name]
    except KeyError:
        raise UnknownName("claim", name, CLAIMS) from None


__all__ = ["CLAIMS", "Bar", "Claim", "Verdict", "claim_named", "judge"]
