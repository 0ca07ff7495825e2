"""Declares the metrics of a policy server."""

import prometheus_client

REQUESTS = prometheus_client.Counter(
    "podrace_serving_requests", "Requests for actions, by protocol and status.", ["protocol", "status"]
)
ROWS = prometheus_client.Counter("podrace_serving_actions", "Actions that were computed for requests.")
BATCH_ROWS = prometheus_client.Histogram(
    "podrace_serving_batch_rows", "Observations in a batch.", buckets=[4**exponent for exponent in range(8)]
)
COMPUTE_SECONDS = prometheus_client.Histogram(
    "podrace_serving_compute_seconds",
    "Time to compute a batch.",
    buckets=[0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1],
)
QUEUED_ROWS = prometheus_client.Gauge("podrace_serving_queued_rows", "Observations that wait to be computed.")
SESSIONS = prometheus_client.Gauge("podrace_serving_sessions", "Open sessions.")
VERSIONS = prometheus_client.Gauge("podrace_serving_loaded_versions", "Versions that are loaded.")
SERVES = prometheus_client.Gauge("podrace_serving_version_info", "1 for the version that serves.", ["version"])
SWAPS = prometheus_client.Counter(
    "podrace_serving_swaps", "Changes of the version that serves, and offers that were refused.", ["outcome"]
)
SOURCE_ERRORS = prometheus_client.Counter(
    "podrace_serving_source_errors",
    "Polls that could not read the source of policies, or that found a damaged version.",
)
SHADOW_ROWS = prometheus_client.Counter(
    "podrace_serving_shadow_actions", "Actions of the shadow version, by whether they differ.", ["different"]
)
