"""Cleans text that plugins and other services send."""


def one_line(reason: str) -> str:
    """Returns a text as one line of at most LONGEST_REASON characters, without control characters."""
    line = " ".join("".join(character if character.isprintable() else " " for character in reason).split())
    return line if len(line) <= LONGEST_REASON else line[:LONGEST_REASON] + "..."


LONGEST_REASON = 300
"""Characters of a plugin's reason that are recorded."""
