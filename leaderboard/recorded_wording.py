"""Translates reasons that earlier versions recorded into today's wording, so that their tournaments can be replayed.

A replay makes every decision again and compares the reasons with the recorded ones. Both are translated first, so a
reason that was only reworded since is no difference. Pure.
"""

import re

_REWORDED = {
    r"; ([\w-]+) instead: ": r"; built-in strategy \1 instead: ",
    r"the rules of the house instead: ": "built-in rules instead: ",
    r"ranks after all that the tournament's evaluator scored": (
        "ranks after all candidates that the tournament's evaluator scored"
    ),
    r"the proposal of (\S+) came too late: ": r"generator \1: its proposal is no longer valid: ",
    r"shapes the training files; expected": "must not change in a child; expected",
    r"is not asked about it": "was not called",
    r"(as specified|values drawn) but for ": r"\1 except ",
    r"goes on from ": "starts from ",
    r"of no more experience, too few": "with no more experience, too few",
    r"no lead over it is beyond the error": "no donor leads it by more than the error",
    r"nobody of (\S+) was (?:ever )?scored": r"no agent of \1 was scored",
    r"nobody else was scored": "no other agent was scored",
    r"\bgoes on\b": "continues",
    r"\b(?:leaves|has left) the draw\b": "is eliminated",
}
"""Regular expression of an earlier wording -> today's wording. The order matters."""


def current_wording(reason: str) -> str:
    """Returns a recorded reason in today's wording."""
    for earlier, current in _REWORDED.items():
        reason = re.sub(earlier, current, reason)
    return reason
