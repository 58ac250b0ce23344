"""Querysets that are compiled once, for the few statements of every request and every sync.

Building a queryset and its SQL costs some ten times what PostgreSQL and its driver need for a row
by its key. Here a queryset is built with named parameters, kept as SQL, and run with values:

    _OF_TEAM = Compiled(lambda: Team.objects.filter(pk=param("pk")).values_list("name"))
    [(name,)] = _OF_TEAM(pk=1)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import connection
from django.db.models import Field, ForeignObject, Lookup, Model, QuerySet
from django.db.models.expressions import RawSQL
from django.db.transaction import TransactionManagementError


@dataclass(frozen=True, slots=True)
class _Name:
    """Stands among a statement's parameters for a value that comes with each call."""

    name: str


def param(name: str) -> RawSQL:
    """Where a filter of a compiled queryset has a value. In `column__any`, a list of them."""
    return RawSQL("%s", [_Name(name)])


@ForeignObject.register_lookup
@Field.register_lookup
class OneOf(Lookup):
    """`column = ANY(list)`: the list is one parameter, so its length does not change the SQL."""

    lookup_name = "any"

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        column, params = self.process_lhs(compiler, connection)
        values, more = self.process_rhs(compiler, connection)
        return f"{column} = ANY{values}", (*params, *more)


@dataclass(frozen=True, slots=True)
class _Statement:
    sql: str
    params: Sequence[Any]
    convert: Callable[[list[tuple[Any, ...]]], list[tuple[Any, ...]]]
    locks: bool


class Compiled:
    """One `values_list` queryset. Call it with the values of its parameters for its rows.

    Raises KeyError for a parameter that is not given, and TransactionManagementError where rows
    are to be locked outside a transaction.
    """

    def __init__(self, build: Callable[[], QuerySet[Any, Any]]) -> None:
        self._build = build

    def __call__(self, **values: Any) -> list[tuple[Any, ...]]:
        statement = self._statement
        if statement.locks and not connection.in_atomic_block:
            raise TransactionManagementError("rows can only be locked in a transaction")
        params = [
            values[param.name] if isinstance(param, _Name) else param for param in statement.params
        ]
        with connection.cursor() as cursor:
            cursor.execute(statement.sql, params)
            return statement.convert(cursor.fetchall())

    def models(self, **values: Any) -> list[Any]:
        """The rows of a `values_list()` of all columns, as models."""
        return [self._model.from_db(connection.alias, self._columns, row) for row in self(**values)]

    @cached_property
    def _model(self) -> type[Model]:
        return self._build().model

    @cached_property
    def _columns(self) -> list[str]:
        return [field.attname for field in self._model._meta.concrete_fields]

    @cached_property
    def _statement(self) -> _Statement:
        query = self._build().query
        compiler = query.get_compiler(connection=connection)
        sql, params = compiler.as_sql()
        converters = compiler.get_converters([column for column, _, _ in compiler.select])

        def convert(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
            if not converters:
                return rows
            return [tuple(row) for row in compiler.apply_converters(rows, converters)]

        return _Statement(sql, params, convert, query.select_for_update)
