"""Pages of long lists: by the number of the last row, so that rows that come meanwhile move nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from podracer_core.errors import FieldViolation, InvalidInput
from podracer_leaderboard import store

DEFAULT_SIZE = 100
MAX_SIZE = 1000


class Numbered(Protocol):
    """A row with a place in its list."""

    @property
    def number(self) -> Any: ...


Row = TypeVar("Row", bound=Numbered)
Query = TypeVar("Query", bound=Select[Any])


def page_query(
    query: Query, number: InstrumentedAttribute[int], size: int, token: str, *, newest_first: bool = False
) -> Query:
    """`query` in order and cut to one page, and one row more that tells whether another follows.

    Raises InvalidInput for a wrong size or token.
    """
    if token:
        last = _last_number(token)
        query = query.where(number < last if newest_first else number > last)
    return query.order_by(number.desc() if newest_first else number).limit(_checked(size) + 1)


def page_of_board(session: Session, board: str, query: Select[Row], size: int) -> tuple[Sequence[Row], str]:
    """The rows of a page of a board, and the token of the next one; empty on the last. Raises NotFound."""
    store.get_board(session, board)
    rows, size = session.scalars(query).all(), _checked(size)
    return rows[:size], str(rows[size - 1].number) if len(rows) > size else ""


def _checked(size: int) -> int:
    if not 0 <= size <= MAX_SIZE:
        raise _refuse("page_size", f"expected 1 to {MAX_SIZE}, or 0 for {DEFAULT_SIZE}; got {size}")
    return size or DEFAULT_SIZE


def _last_number(token: str) -> int:
    if not (token.isascii() and token.isdecimal() and len(token) < 19):
        raise _refuse("page_token", "was not given by a former response")
    return int(token)


def _refuse(field: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{field}: {problem}", violations=[FieldViolation(field, problem)])
