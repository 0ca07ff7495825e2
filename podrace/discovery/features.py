"""Names the abilities that were added to the contracts, so that clients can ask for them."""

from collections.abc import Mapping

FEATURES: Mapping[str, str] = {
    "discovery": "DiscoveryService",
    "validate_only": "`CreateTournamentRequest.validate_only`, which checks a specification and creates nothing",
    "evaluation_operations": "WaitEvaluation and CancelEvaluation",
    "update_mask": "`UpdateTournamentRequest.update_mask` and `etag`",
    "error_details": "ErrorInfo, ResourceInfo and RetryInfo with every error",
    "list_filters": "`filter` and `order_by` of the lists of both services",
    "labels": "labels of tournaments",
    "reflection_v1": "reflection under the name of version 1 too, where it is on",
    "archive": "`DeleteTournamentRequest.archive`; a server without it deletes and archives nothing",
    "caller": "GetCaller",
}
"""What each feature adds. A name is never reused."""
