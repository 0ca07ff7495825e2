"""Prints which versions a policy server serves, as tables and as values for JSON."""

from typing import Any

from rich.console import RenderableType

from podrace.cli.views.tables import facts_table
from podrace.policy.v1.policy_service_pb2 import Serving

SHOWN_CHARACTERS = 16
"""Characters of a version in a table; the JSON has all."""


def overview(address: str, serving: Serving) -> RenderableType:
    """Returns a table of one server."""
    comparison = serving.comparison if serving.HasField("comparison") else None
    facts = [
        ("server", address),
        ("source", serving.source),
        ("serves", f"{_short(serving.version) or 'nothing yet'}{' (pinned)' if serving.pinned else ''}"),
    ]
    if comparison:
        how = "shadows all requests" if comparison.shadow else f"answers {comparison.share:.4g} of the requests"
        facts.append(("compared with", f"{_short(comparison.version)}, which {how}"))
    if serving.previous_versions:
        facts.append(("before", " ".join(map(_short, serving.previous_versions))))
    facts += [("refused", f"{_short(one.version)}: {one.reason}") for one in serving.refused]
    return facts_table(facts)


def values(address: str, serving: Serving) -> dict[str, Any]:
    """Returns what `--json` prints of one server."""
    comparison = None
    if serving.HasField("comparison"):
        found = serving.comparison
        comparison = {"version": found.version, "share": found.share, "shadow": found.shadow}
    return {
        "server": address,
        "source": serving.source,
        "version": serving.version or None,
        "pinned": serving.pinned,
        "comparison": comparison,
        "previous_versions": list(serving.previous_versions),
        "refused": [{"version": one.version, "reason": one.reason} for one in serving.refused],
    }


def _short(version: str) -> str:
    return version[:SHOWN_CHARACTERS]
