"""Reading a run directory, finished or growing, on any machine; needs Polars and no lock."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pkb.errors import UserError
from pkb.store.layout import Listing, table_listing
from pkb.store.schema import READABLE_VERSIONS, SCHEMA_VERSION, TABLES
from pkb.store.writer import read_journal

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

KEY_COLUMNS = ("run", "model", "problem", "attempt", "turn")
#: The column that says what became of a row's attempt.
OUTCOME = {"generations": "status", "evaluations": "verdict"}


def scan(run: Path, table: str) -> pl.LazyFrame:
    """All rows of ``generations`` or ``evaluations``, with the columns of ``pkb.store.schema``; empty when there are none yet.

    The rows of the growing part are a snapshot; a damaged part is named in a warning and left out. Raises UserError when
    ``run`` is no run directory, or was written by a version of pkb whose rows this one cannot read.
    """
    import polars as pl

    folder = _folder(run, table)
    schema = _polars_schema(table)
    found, rows = _snapshot(folder)
    alike: dict[pa.Schema, list[Path]] = {}
    for slot in found.parts:
        if (stored := _stored_schema(path := folder / slot.part, table)) is not None:
            alike.setdefault(stored, []).append(path)
    frames = [
        pl.scan_parquet(paths, schema=schema, glob=False)
        if stored.equals(TABLES[table])
        else pl.scan_parquet(paths, glob=False).select(_as_ours(stored, table))
        for stored, paths in alike.items()
    ]
    if rows or not frames:
        frames.append(pl.LazyFrame(rows, schema=schema, orient="row"))
    return pl.concat(frames)


def done_keys(run: Path, table: str) -> pl.DataFrame:
    """Model, problem, attempt, turn and outcome (status or verdict) of every row; a second or two for a million rows."""
    frame = scan(run, table).select("model", "problem", "attempt", "turn", OUTCOME[table])
    return frame.collect().rename({OUTCOME[table]: "outcome"})


def parts(run: Path, table: str) -> list[Path]:
    """The parts that count, in order; for readers that go through a large table piece by piece."""
    folder = _folder(run, table)
    return [path for slot in table_listing(folder).parts if _stored_schema(path := folder / slot.part, table) is not None]


def _folder(run: Path, table: str) -> Path:
    if not (run / "run.yaml").is_file() and not (run / table).is_dir():
        raise UserError(f"{run} is no run directory; give one that `pkb sweep` has printed, e.g. outputs/<name>")
    return run / table


def _snapshot(folder: Path) -> tuple[Listing, list[dict[str, Any]]]:
    """A listing and the rows of its journals that belong together, while a writer may be turning one into a part."""
    for _ in range(100):
        found = table_listing(folder)
        try:
            rows = [row for slot in found.journals for row in read_journal(folder / slot.journal)[0]]
        except FileNotFoundError:  # became a part meanwhile
            continue
        again = table_listing(folder)
        if (again.parts, again.journals) == (found.parts, found.journals):
            return found, rows
    raise UserError(f"{folder} changes faster than it can be read; try again")


def _stored_schema(path: Path, table: str) -> pa.Schema | None:
    """The part's columns, without metadata. A part that is not whole is named in a warning: None.

    Raises UserError for rows of a version that this pkb does not read, or columns that cannot be taken for ours.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        stored = pq.read_schema(path)
        version = (stored.metadata or {}).get(b"pkb.schema_version")
        newest = int(version) if version is not None else _newest_row(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        warnings.warn(f"{path} is damaged and left out ({reason}); run the same sweep again to fill the gap", stacklevel=4)
        return None
    if newest not in READABLE_VERSIONS:
        known = ", ".join(map(str, READABLE_VERSIONS))
        todo = "upgrade pkb" if newest > SCHEMA_VERSION else "read it with the pkb that wrote it"
        raise UserError(f"{path} has schema version {newest}, this pkb reads {known}; {todo}")
    stored = stored.remove_metadata()
    wanted = TABLES[table]
    if stored.equals(wanted):  # as a rule; a look at every field of a thousand parts takes longer than reading them
        return wanted
    for name in (*_IDENTITY, OUTCOME[table]):
        if name not in stored.names:
            raise UserError(f"{path} has no column {name}, so it is no part of {table}; move it away")
    for field in stored:
        if field.name in wanted.names and not _convertible(field.type, wanted.field(field.name).type):
            raise UserError(f"{path}: column {field.name} is {field.type}, expected {wanted.field(field.name).type}")
    return stored


#: What tells rows apart; a part must have these, and the outcome.
_IDENTITY = ("model", "problem", "attempt")


def _newest_row(path: Path) -> int:
    """The highest schema_version of the rows of a part that other tools wrote, as its statistics tell; ours when they do not."""
    import pyarrow.parquet as pq

    described = pq.read_metadata(path)
    newest = None
    for group in map(described.row_group, range(described.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema == "schema_version" and column.statistics is not None and column.statistics.has_min_max:
                newest = max(newest or 0, int(column.statistics.max))
    return SCHEMA_VERSION if newest is None else newest


def _convertible(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether other tools may have written our type so: Polars writes large strings, 64-bit numbers, and nulls without a type."""
    from pyarrow import types

    if types.is_dictionary(stored):
        stored = stored.value_type
    if types.is_null(stored) or stored.equals(wanted):
        return True
    if types.is_string(wanted):
        return bool(types.is_large_string(stored) or types.is_string_view(stored))
    number = types.is_integer(stored) or (types.is_floating(stored) and types.is_floating(wanted))
    return bool(number and (types.is_integer(wanted) or types.is_floating(wanted)))


def _as_ours(stored: pa.Schema, table: str) -> list[pl.Expr]:
    """Our columns from a part with others: types converted, and what is missing null, or neutral where there is no null."""
    import polars as pl

    neutral = {pl.String: "", pl.Boolean: False, pl.Int32: 0}
    columns = []
    for field, (name, dtype) in zip(TABLES[table], _polars_schema(table).items(), strict=True):
        if name in stored.names:
            columns.append(pl.col(name).cast(dtype))
        elif name == "schema_version":
            columns.append(pl.lit(SCHEMA_VERSION, dtype).alias(name))
        else:
            columns.append(pl.lit(None if field.nullable else neutral[type(dtype)], dtype).alias(name))
    return columns


def _polars_schema(table: str) -> Any:
    import polars as pl

    return pl.Schema(pl.from_arrow(TABLES[table].empty_table()).schema)  # type: ignore[union-attr]
