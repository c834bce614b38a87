"""The session that writes: it keeps the rows that are changed again and again, and its statements are compiled once.

SQLAlchemy's own unit of work is made for every mapping, and takes several times what its statements do. Rows here have
columns, foreign keys that their makers set, and at most collections that need no storing: so rows that are new go into
their tables in the order of these, then what has changed in others. Whatever is deleted is left to SQLAlchemy.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Dialect, Insert, Select, Table, Update, bindparam, event, insert, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

Row = Any
Query = TypeVar("Query", bound="Select[*tuple[Any, ...]]")

_PREPARED: set[Select[Any]] = set()


def prepared(query: Query) -> Query:
    """Have a query that is made once compiled once. It has no IN with a list."""
    _PREPARED.add(query)
    return query


class Found(list[Any]):
    """What a prepared query has found."""

    def all(self) -> list[Any]:
        """As of SQLAlchemy's results."""
        return self


class WritingSession(Session):
    """For one thread. Rows whose class says `is_kept` stay in memory and are read once: nothing else changes them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kept: dict[int, Row] = {}
        self.bound: Connection
        """That of the present transaction."""
        event.listen(self, "loaded_as_persistent", self._keep)
        event.listen(self, "pending_to_persistent", self._keep)
        event.listen(self, "persistent_to_deleted", lambda _, row: self.kept.pop(id(row), None))

    def get(self, entity: Any, ident: Any, **options: Any) -> Any:
        """As in Session; what is known already costs next to nothing."""
        row = self.identity_map.get((entity, ident if isinstance(ident, tuple) else (ident,), None))
        if row is None or options or row._sa_instance_state.expired:
            return super().get(entity, ident, **options)
        return row

    def get_one(self, entity: Any, ident: Any, **options: Any) -> Any:
        """As in Session."""
        row = self.get(entity, ident, **options)
        return super().get_one(entity, ident, **options) if row is None else row

    def execute(self, statement: Any, params: Any = None, **options: Any) -> Any:
        """As in Session; a prepared query gives Found."""
        if statement not in _PREPARED:
            return super().execute(statement, params, **options)
        return self._find(statement, params)

    def scalars(self, statement: Any, params: Any = None, **options: Any) -> Any:
        """As in Session; a prepared query gives Found."""
        if statement not in _PREPARED:
            return super().scalars(statement, params, **options)
        found = self._find(statement, params)
        return found if _entity(statement) is not None else Found(row[0] for row in found)

    def scalar(self, statement: Any, params: Any = None, **options: Any) -> Any:
        """As in Session."""
        if statement not in _PREPARED:
            return super().scalar(statement, params, **options)
        return next(iter(self.scalars(statement, params)), None)

    def _find(self, query: Select[Any], params: Mapping[str, Any] | None) -> Found:
        """Rows of the one class that is asked for, by their keys; else tuples."""
        self._autoflush()
        entity = _entity(query)
        text = _text(query if entity is None else _keys(query), self.bound.dialect)
        rows = text.run(self.bound, params or {})
        return Found(rows if entity is None else (self.get_one(entity, row) for row in rows))

    def _keep(self, _: Session, row: Row) -> None:
        if getattr(row, "is_kept", False):
            self.kept[id(row)] = row

    def _flush(self, objects: Sequence[object] | None = None) -> None:
        new, changed = list(self._new), [state for state in self._dirty_states if state not in self._new]
        if objects or self._deleted or not (new or changed):
            super()._flush(objects)
            return
        _insert(self.bound, new)
        _update(self.bound, changed)
        self._register_persistent({*new, *changed})


class _Text:
    """A statement as a driver takes it."""

    def __init__(self, statement: Any, dialect: Dialect, columns: Sequence[str] | None = None) -> None:
        """`columns`: those that an insert or update gives values."""
        compiled = statement.compile(dialect=dialect, column_keys=columns)
        self.sql = str(compiled)
        self._constants: Mapping[str, Any] = compiled.params
        self._converted: Mapping[str, Callable[[Any], Any]] = compiled._bind_processors
        self._order: Sequence[str] | None = compiled.positiontup

    def run(self, connection: Connection, *values: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        """What the statement finds with these values of its parameters; with several it finds nothing.

        Straight to the driver: SQLAlchemy takes four times as long for a statement as the database does.
        """
        cursor, dbapi = connection.connection.cursor(), connection.dialect.loaded_dbapi
        parameters = [self._parameters(each) for each in values]
        try:
            if len(parameters) > 1:
                cursor.executemany(self.sql, parameters)
                return ()
            cursor.execute(self.sql, parameters[0])
            return cursor.fetchall() if cursor.description else ()
        except dbapi.Error as error:
            raise DBAPIError.instance(self.sql, parameters, error, dbapi.Error) from error
        finally:
            cursor.close()

    def _parameters(self, values: Mapping[str, Any]) -> Any:
        """Of the statement's bound parameters, those of `values` and the others as they were when it was made."""
        every = {**self._constants, **values}
        for name, convert in self._converted.items():
            every[name] = convert(every[name])
        return every if self._order is None else tuple(every[name] for name in self._order)


_text, _insert_into = functools.cache(_Text), functools.cache(insert)


@functools.cache
def _entity(query: Select[Any]) -> Any:
    """The class whose rows a query asks for; None where it asks for something else."""
    (first, *others) = query.column_descriptions
    return first["type"] if not others and first["expr"] is first["entity"] else None


@functools.cache
def _keys(query: Select[Any]) -> Select[Any]:
    """The query for the keys of the rows that `query` asks for."""
    return query.with_only_columns(*_entity(query).__table__.primary_key)


def _insert(connection: Connection, new: Sequence[Any]) -> None:
    """Store new rows, tables that others refer to first; rows that are counted up get their numbers."""
    of_tables: dict[Table, list[Any]] = defaultdict(list)
    for state in new:
        of_tables[state.mapper.local_table].append(state)
    for table in sorted(of_tables, key=_place):
        values = [_values(state) for state in of_tables[table]]
        counted = table.autoincrement_column
        if counted is None or all(counted.key in each for each in values):
            text = _text(_insert_into(table), connection.dialect, tuple(table.c.keys()))
            text.run(connection, *values)
            continue
        for state, each in zip(of_tables[table], values, strict=True):
            text = _text(_insert_counted(table), connection.dialect, tuple(each))
            ((state.dict[counted.key],),) = text.run(connection, each)


def _update(connection: Connection, changed: Sequence[Any]) -> None:
    """Store what has changed in rows, those of the same columns of a table at once."""
    groups: dict[tuple[Table, tuple[str, ...]], list[dict[str, Any]]] = defaultdict(list)
    for state in changed:
        table, now, former = state.mapper.local_table, state.dict, state.committed_state
        keys = tuple(sorted(key for key in former if key in table.c and now[key] != former[key]))
        if keys:
            identity = zip(table.primary_key, state.key[1], strict=True)
            values = {f"of_{column.key}": value for column, value in identity}
            groups[table, keys].append(values | {key: now[key] for key in keys})
    for (table, keys), rows in groups.items():
        text = _text(_update_of(table), connection.dialect, keys)
        text.run(connection, *rows)


@functools.cache
def _insert_counted(table: Table) -> Insert:
    counted: Any = table.autoincrement_column
    return insert(table).returning(counted)


@functools.cache
def _update_of(table: Table) -> Update:
    return update(table).where(*(column == bindparam(f"of_{column.key}") for column in table.primary_key))


def _values(state: Any) -> dict[str, Any]:
    """The columns of a new row; what its maker left out gets its default, except a number that is counted up."""
    table, now = state.mapper.local_table, state.dict
    for name, default in _defaults(table).items():
        if now.get(name) is None:
            now[name] = default()
    return {name: now[name] for name in table.c.keys() if name in now}  # noqa: SIM118 - no mapping


@functools.cache
def _defaults(table: Table) -> dict[str, Callable[[], Any]]:
    """What columns hold where nothing is said."""
    found: dict[str, Callable[[], Any]] = {}
    for column in table.c:
        default: Any = column.default
        if column is table.autoincrement_column:
            continue
        if default is None:
            found[column.key] = lambda: None
        elif default.is_scalar:
            found[column.key] = functools.partial(lambda value: value, default.arg)
        else:
            found[column.key] = functools.partial(default.arg, None)
    return found


@functools.cache
def _place(table: Table) -> int:
    """After the tables that its rows refer to."""
    return table.metadata.sorted_tables.index(table)
