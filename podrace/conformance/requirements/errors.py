"""Lists the requirement about the details of errors, which every contract makes."""

from podrace.conformance.findings import Requirement

ERROR_DETAILS = Requirement(
    "error-details",
    "those that it sends have this form",
    "podrace.error.v1.ErrorReason",
    "send a google.rpc.Status with the code and the message of the call, and an ErrorInfo of the domain podrace with a"
    " reason of the contract, or leave the details out",
)
