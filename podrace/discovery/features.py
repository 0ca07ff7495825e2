"""Names the abilities that were added to the contracts, so that clients can ask for them."""

from collections.abc import Mapping

FEATURES: Mapping[str, str] = {
    "discovery": "DiscoveryService",
    "validate_only": "`CreateTournamentRequest.validate_only`, which checks a specification and creates nothing",
}
"""What each feature adds. A name is never reused."""
