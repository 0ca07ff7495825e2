"""Statements of the services are valid with SQLite and, as podrace/database/dialect.py translates them, PostgreSQL."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
OWN = re.compile(r"\b(?:INSERT OR (?:REPLACE|IGNORE|ABORT|FAIL|ROLLBACK)|REPLACE INTO)\b")
"""What only SQLite accepts; `INSERT ... ON CONFLICT` does the same with both."""


def test_rows_are_replaced_by_statements_of_both_dialects():
    assert OWN.search("INSERT OR REPLACE INTO losses VALUES (?)")
    packages = [REPOSITORY / name for name in ("orchestrator", "leaderboard", "podrace")]
    sources = [path for package in packages for path in package.rglob("*.py")]
    assert not [str(path.relative_to(REPOSITORY)) for path in sources if OWN.search(path.read_text())]
