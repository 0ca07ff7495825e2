"""Reads pages of the lists of tournaments, events and evaluations."""

import json
from collections.abc import Collection

from orchestrator.state import records
from orchestrator.state.database import Transaction
from orchestrator.state.records import EvaluationRecord, EventRecord, TournamentRecord
from podrace.database.filtering import order_by, where
from podrace.listing.selection import ListSelection
from podrace.page_tokens import LARGEST_POSITION


def tournaments(
    transaction: Transaction, visible: Collection[str] | None, selection: ListSelection, limit: int
) -> list[TournamentRecord]:
    """Returns a page of the visible tournaments (None: all are), newest first unless the selection has an order."""
    return _page(transaction, TournamentRecord, visible, selection, limit, newest_first=True)


def events(
    transaction: Transaction, visible: Collection[str] | None, selection: ListSelection, limit: int
) -> list[EventRecord]:
    """Returns a page of the events of visible tournaments (None: all are), oldest first unless ordered otherwise."""
    return _page(transaction, EventRecord, visible, selection, limit, newest_first=False)


def evaluations(
    transaction: Transaction, tournament_id: str, selection: ListSelection, limit: int
) -> list[EvaluationRecord]:
    """Returns a page of the evaluations of a tournament, oldest first unless the selection has an order."""
    condition, values = where(selection.conditions)
    if selection.order:
        text = f"tournament_id = ? AND {condition} ORDER BY {order_by(selection.order)}, number LIMIT ? OFFSET ?"
        return records.select(transaction, EvaluationRecord, text, tournament_id, *values, limit, selection.position)
    text = f"tournament_id = ? AND {condition} AND number >= ? ORDER BY number LIMIT ?"
    return records.select(transaction, EvaluationRecord, text, tournament_id, *values, selection.position, limit)


def _page(
    transaction: Transaction,
    kind: type[records.Record],
    visible: Collection[str] | None,
    selection: ListSelection,
    limit: int,
    *,
    newest_first: bool,
) -> list[records.Record]:
    """Returns a page; a sequence number continues the default order, and a number of entries any other."""
    condition, values = where(selection.conditions)
    if visible is not None and len(visible) == 1:
        # An equality lets the query use the index of the tournament.
        condition += " AND tournament_id = ?"
        values += visible
    elif visible is not None:
        condition += " AND tournament_id IN (SELECT key FROM json_each(?))"
        values.append(json.dumps(dict.fromkeys(sorted(visible))))
    default = "sequence DESC" if newest_first else "sequence"
    if selection.order:
        text = f"{condition} ORDER BY {order_by(selection.order)}, {default} LIMIT ? OFFSET ?"
        return records.select(transaction, kind, text, *values, limit, selection.position)
    start = (selection.position or LARGEST_POSITION) if newest_first else selection.position
    text = f"{condition} AND sequence {'<' if newest_first else '>'} ? ORDER BY {default} LIMIT ?"
    return records.select(transaction, kind, text, *values, start, limit)
