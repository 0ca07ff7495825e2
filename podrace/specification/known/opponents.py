"""Lists the opponents that an agent can train against in games of two players (`opponents.training`)."""

from collections.abc import Mapping

BUILT_IN, SELF, PAST, BOARD = "built-in", "self", "past", "board"
TRAINING: Mapping[str, str] = {
    BUILT_IN: "the player that the environment contains",
    SELF: "the agent's own current policy",
    PAST: "the agent's own current and earlier policies (fictitious self-play)",
    BOARD: "candidates of all agents, on the board or former leaders of it (population play)",
}
"""Values of `opponents.training`."""
