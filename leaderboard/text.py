"""Cleans text that comes from outside."""


def one_line(reason: str) -> str:
    """A stranger's reason as one line of bounded length."""
    line = " ".join("".join(character if character.isprintable() else " " for character in reason).split())
    return line if len(line) <= LONGEST_REASON else line[:LONGEST_REASON] + "..."


LONGEST_REASON = 300
"""Characters of a custom part's reason that are kept."""
