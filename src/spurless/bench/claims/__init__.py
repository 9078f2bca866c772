"""The table of claims. To add one, define it in the file of its paper, and add that file here."""

from __future__ import annotations

from spurless.bench.claims import avp, dcwp, large_lr, masktune, neurontune, theory
from spurless.bench.claims.base import Bar, Claim, ClaimResult, check_claim
from spurless.core.errors import UnknownNameError

CLAIMS: dict[str, Claim] = {
    claim.id: claim for paper in (theory, masktune, neurontune, dcwp, avp, large_lr) for claim in paper.CLAIMS
}


def get_claim(name: str) -> Claim:
    """Return the claim with that id."""
    try:
        return CLAIMS[name]
    except KeyError:
        raise UnknownNameError("claim", name, CLAIMS) from None


__all__ = ["CLAIMS", "Bar", "Claim", "ClaimResult", "check_claim", "get_claim"]
