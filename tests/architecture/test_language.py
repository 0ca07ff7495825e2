"""The text of the project is plain English: none of the phrases of phrases.py is used anywhere."""

import re
from pathlib import Path

import pytest
from phrases import PHRASES

REPOSITORY = Path(__file__).parents[2]
# One test for a preceding letter, and not one for each phrase, decides at most positions.
PATTERN = re.compile(f"(?<![a-z])(?:{'|'.join(f'(?:{phrase})(?![a-z])' for phrase in PHRASES)})", re.IGNORECASE)
GLOBS = ("*.md", "*.toml", "Makefile", "docs/**/*.md", "protos/**/*.proto", "examples/**/*", "deploy/**/*", ".ci/*")
PACKAGES = ("podrace", "orchestrator", "leaderboard", "agentpod", "simulators", "benchmarks", "tests")
EXCLUDED = (
    "deploy/locks/",
    "docs/log/",
    "leaderboard/recorded_wording.py",
    "podrace/dashboard/assets/vendor/",
    "tests/architecture/phrases.py",
    "tests/architecture/test_language.py",
    "tests/fixtures/",
)
"""Locks have no text, and the text of libraries is that of their authors. Old log entries and the wording of earlier
releases stay as they are; the list and its test name the phrases."""


def texts() -> list[Path]:
    found = {path for pattern in GLOBS for path in REPOSITORY.glob(pattern) if path.is_file()}
    for package in PACKAGES:
        found |= {path for path in (REPOSITORY / package).rglob("*.py") if "_pb2" not in path.name}
        found |= set((REPOSITORY / package).rglob("*.js"))
    relative = sorted(path.relative_to(REPOSITORY) for path in found if "__pycache__" not in path.parts)
    return [path for path in relative if not path.as_posix().startswith(EXCLUDED)]


def phrases_in(text: str) -> list[str]:
    return [
        f"{number}: {match[0]!r} in {line.strip()[:100]!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for match in PATTERN.finditer(line.replace("_", " "))
    ]


def test_the_list_is_long_and_every_entry_names_a_replacement():
    assert len(PHRASES) >= 60
    assert all(PHRASES.values())


@pytest.mark.parametrize(
    "line", ["Owns what is told.", "def test_who_is_told(): ...", "the house stood in", "def goes_on(): ..."]
)
def test_a_phrase_is_found_in_text_and_in_names(line):
    assert phrases_in(line)


def test_no_text_uses_a_listed_phrase():
    try_decode = {path: (REPOSITORY / path).read_bytes() for path in texts()}
    found = [
        f"{path}:{problem}"
        for path, content in try_decode.items()
        for problem in phrases_in(content.decode("utf-8", "ignore"))
    ]
    assert not found, f"{len(found)} uses of listed phrases, the first: {found[:20]}"
