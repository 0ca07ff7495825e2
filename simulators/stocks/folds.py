"""Places validation folds in the years before the backtest, so that training and validation share no price. Pure.

One policy is trained once, so the folds are not the test sets of repeated trainings. They are blocks that training
never steps through: the span from `train_start` to `validation_end` is cut into as many equal segments as there are
folds, and each segment ends with a fold. The last fold ends where the backtest begins.

    | training | purged | fold 1 | purged | training | purged | fold 2 | purged | training | purged | fold 3 | backtest

Purging follows Lopez de Prado (2018), "Advances in Financial Machine Learning", chapter 7 (section 7.4.1, purging;
section 7.4.2, embargo), with the features' look-back in place of the span of a label:

- Rows before a fold, as many as the look-back of its features, are not traded in training.
- Rows after a fold are not traded in training until the look-back of training's features begins after the fold. An
  embargo adds rows to these.

An indicator that averages exponentially has no finite look-back. Features of a block are therefore computed from the
rows since `Block.known` only, as if the data began there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from podrace.errors import InvalidArgument

LEAST_ROWS = 3
"""Minimum number of rows of a block."""


@dataclass(frozen=True)
class Block:
    """Rows that are traded without interruption."""

    rows: range
    """The rows."""
    known: int = 0
    """First row whose prices the features of these rows may depend on."""


@dataclass(frozen=True)
class Folds:
    """The blocks of a span."""

    training: tuple[Block, ...]
    validation: tuple[Block, ...]
    """The folds, by time."""


def place_folds(
    dates: NDArray[np.datetime64],
    span: range,
    validation_start: int,
    count: int,
    first_known: Callable[[int], int],
    embargo: int = 0,
    least_rows: int = LEAST_ROWS,
) -> Folds:
    """Places folds of equal length, in whole days.

    Args:
        dates: [rows] datetime64[D], ascending; bars of one day share theirs.
        span: Rows from the first of training to the last of validation.
        validation_start: The folds together have as many days as there are from this row to the end of the span.
        count: Number of folds, at least 1.
        first_known: Returns the first row that the features of a row depend on; it does not decrease with the row.
        embargo: Further rows after each fold that training neither trades nor sees in its features.
        least_rows: Shortest block of training to keep; episodes do not fit in a shorter one.

    Raises:
        InvalidArgument: A fold would have no day, or no block of training is left.
    """
    starts = np.flatnonzero(np.append(True, dates[1:] != dates[:-1]))
    limits = np.append(starts, len(dates))
    begin, end = int(np.searchsorted(limits, span.start)), int(np.searchsorted(limits, span.stop))
    days = (end - int(np.searchsorted(limits, validation_start))) // count
    if days < 1:
        raise InvalidArgument(f"option 'folds': {count} folds need {count} days from train_end to validation_end")
    known_from = np.array([first_known(int(row)) for row in starts])
    training, validation, free = list[Block](), list[Block](), span.start
    for number in range(1, count + 1):
        last = begin + (end - begin) * number // count
        fold = range(int(limits[last - days]), int(limits[last]))
        # The whole days before the look-back of the fold.
        stop = int(starts[np.searchsorted(starts, first_known(fold.start), side="right") - 1])
        if number == 1:
            block = Block(range(span.start, stop))
        else:
            day = int(np.searchsorted(known_from, free))
            block = Block(range(int(limits[day]), stop), known=free)
        if len(block.rows) >= least_rows:
            training.append(block)
        validation.append(Block(fold, known=stop))
        free = fold.stop + embargo
    if not training:
        raise InvalidArgument(
            f"option 'folds': {count} folds of {days} days leave no {least_rows} rows in a row to train on, because the"
            " rows around a fold that its features or those of training depend on are left out: use fewer folds, or an"
            " earlier train_start"
        )
    return Folds(tuple(training), tuple(validation))
