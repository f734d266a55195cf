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
    paths = [path for slot in found.parts if _readable(path := folder / slot.part, table)]
    frames = []
    if paths:
        frames.append(pl.scan_parquet(paths, schema=schema, missing_columns="insert", extra_columns="ignore", glob=False))
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
    return [path for slot in table_listing(folder).parts if _readable(path := folder / slot.part, table)]


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


def _readable(path: Path, table: str) -> bool:
    """Whether the part is whole; warns when it is not, raises UserError when its version or columns are unknown."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"{path} is damaged and left out ({reason}); run the same sweep again to fill the gap", stacklevel=4)
        return False
    wanted = TABLES[table]
    stored = (schema.metadata or {}).get(b"pkb.schema_version")
    if stored is not None and int(stored) not in READABLE_VERSIONS:
        raise UserError(f"{path} has schema version {int(stored)}, this pkb reads {SCHEMA_VERSION}; upgrade pkb")
    if schema.equals(wanted):  # as a rule; a look at every field of a thousand parts takes longer than reading them
        return True
    for field in schema:
        if field.name in wanted.names and field.type != wanted.field(field.name).type:
            raise UserError(f"{path}: column {field.name} is {field.type}, expected {wanted.field(field.name).type}")
    return True


def _polars_schema(table: str) -> Any:
    import polars as pl

    return pl.Schema(pl.from_arrow(TABLES[table].empty_table()).schema)  # type: ignore[union-attr]
