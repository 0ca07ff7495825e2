"""Extracts the fenced code blocks of the documents, each with the mark above it.

A mark is an HTML comment on the line above a fence, which readers of the page do not see:

- `<!-- docs-test: run -->`: `make test-docs` runs the block, in the order of the page.
- `<!-- docs-test: file NAME -->`: the block is a file that later blocks of the page use.
- `<!-- docs-test: skip REASON -->`: the block is not checked, for this reason.

A block without a mark is checked by its language (`block_checks.py`). A fence without a language is an error: output
and diagrams have the language `text`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

REPOSITORY = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "deploy/**/*.md", "protos/**/*.md", "examples/**/*.md", "agentpod/**/*.md")
EXCLUDED = ("docs/log/2", "docs/tools/", "CHANGELOG.md")
"""Beginnings of paths that are not checked: entries of the log keep the words of their day, templates become pages."""

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w+-]*)[ \t]*\n(?P<text>.*?)^(?P=indent)```[ \t]*$", re.DOTALL | re.MULTILINE
)
_MARK = re.compile(r"<!-- docs-test: (?P<action>\w+)(?: (?P<argument>[^>]+?))? -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """One fenced block of a document."""

    path: str
    """Of the document, relative to the repository."""
    line: int
    """Of its first fence, from 1."""
    language: str
    """Behind the fence; empty when there is none."""
    text: str
    """What is between the fences, without their indent."""
    action: str = ""
    """`run`, `file`, `skip`, or empty without a mark."""
    argument: str = ""
    """What the mark says after its action: the name of the file, or the reason."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def documents() -> list[Path]:
    """Returns the documents whose blocks are checked."""
    found = {path for pattern in PATTERNS for path in REPOSITORY.glob(pattern)}
    return sorted(path for path in found if not str(path.relative_to(REPOSITORY)).startswith(EXCLUDED))


def blocks_of(path: Path) -> Iterator[Block]:
    """Yields the blocks of one document in order."""
    page = path.read_text()
    for fence in _FENCE.finditer(page):
        mark = _MARK.search(page, 0, fence.start())
        yield Block(
            path=str(path.relative_to(REPOSITORY)),
            line=page.count("\n", 0, fence.start()) + 1,
            language=fence["language"],
            text=dedent(fence["text"]),
            action=mark["action"] if mark else "",
            argument=(mark["argument"] or "") if mark else "",
        )


def all_blocks() -> list[Block]:
    """Returns the blocks of all documents."""
    return [block for path in documents() for block in blocks_of(path)]
