"""``pkb export``: a run as a data set that loads anywhere: Parquet in folders, and a card that says what it is.

The layout is the one that the Hugging Face hub reads: one configuration per table, named in the card's front matter.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from pkb import problem
from pkb.analyze.card import card
from pkb.analyze.runs import Run, evaluations, generations, once_told, open_run
from pkb.analyze.tables import tables
from pkb.errors import UserError
from pkb.store.layout import Slot
from pkb.store.schema import SCHEMA_VERSION, TABLES

#: One row per problem of the run. A change of any column is a change of SCHEMA_VERSION, as for the other two tables.
PROBLEMS = pa.schema(
    [
        pa.field("problem", pa.string(), nullable=False),  # NNN_stem, the key of the other tables
        pa.field("title", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),  # the project that it was drawn from
        pa.field("tags", pa.list_(pa.string()), nullable=False),
        pa.field("sizes", pa.string(), nullable=False),  # JSON: preset -> dimension -> value
        pa.field("deviations", pa.list_(pa.string()), nullable=False),  # from the original benchmark, on purpose
        pa.field("reference", pa.string(), nullable=False),  # the text that models see
        pa.field("schema_version", pa.int32(), nullable=False),
    ]
)
SCHEMAS: Mapping[str, pa.Schema] = {"problems": PROBLEMS, **TABLES}
ROWS_PER_FILE = 50_000
_BATCH = 2000  # rows of texts in memory at once


def export(run: Path, out: Path) -> tuple[str, ...]:
    """Write the data set of a run to the new folder ``out``: problems/, generations/, evaluations/, run.yaml and README.md.

    Returns the notes on what is missing or mixed, one line each; the card has them too.
    Raises UserError when ``run`` is no run, or ``out`` is there already and not an empty folder. Nothing is left of a failed
    export.
    """
    opened = open_run(run)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} is there already; name a new folder")
    found = tables([run])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with (
            once_told([opened]),
            tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch,
        ):
            made = Path(scratch) / "dataset"
            counts = {
                "problems": _write(
                    made / "problems", PROBLEMS, [pa.Table.from_pylist(_problems(opened, found.cells), schema=PROBLEMS)]
                ),
                "generations": _write(made / "generations", TABLES["generations"], _rows(opened, "generations")),
                "evaluations": _write(made / "evaluations", TABLES["evaluations"], _rows(opened, "evaluations")),
            }
            described = {"run": opened.label, **opened.described()}
            (made / "run.yaml").write_text(yaml.safe_dump(described, sort_keys=False, allow_unicode=True), encoding="utf-8")
            (made / "README.md").write_text(card(opened, found, SCHEMAS, counts), encoding="utf-8")
            if out.exists():
                out.rmdir()
            os.replace(made, out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None
    return found.notes


def _problems(run: Run, cells: Any) -> list[dict[str, Any]]:
    """Rows of PROBLEMS: what the run planned, or what it has rows of; a problem that this version lacks is left out."""
    known = set(problem.names())
    planned = run.meta.get("problems") or sorted(set(cells["problem"]))
    return [_problem(name) for name in planned if name in known]


def _problem(name: str) -> dict[str, Any]:
    spec = problem.load(name)
    return {
        "problem": name,
        "title": spec.title,
        "category": spec.category,
        "source": spec.source,
        "tags": list(spec.tags),
        "sizes": json.dumps({k: dict(v) for k, v in spec.sizes.items()}),
        "deviations": list(spec.deviations),
        "reference": spec.reference_source,
        "schema_version": SCHEMA_VERSION,
    }


def _rows(run: Run, table: str) -> Iterator[pa.Table]:
    scan = {"generations": generations, "evaluations": evaluations}[table]
    for batch in scan(run).collect_batches(chunk_size=_BATCH, maintain_order=True):
        yield batch.to_arrow().select(TABLES[table].names).cast(TABLES[table])


def _write(folder: Path, schema: pa.Schema, batches: Iterable[pa.Table]) -> int:
    """Write the batches as files of at most about ROWS_PER_FILE rows, at least one file; returns the number of rows.

    Files are named as the store names parts, so that a data set is read like the run that it came from.
    """
    folder.mkdir(parents=True)
    schema = schema.with_metadata({"pkb.schema_version": str(SCHEMA_VERSION)})
    total, number = 0, 1
    writer = None
    for batch in batches:
        if writer is None:
            writer, held = pq.ParquetWriter(folder / Slot(number).part, schema, compression="zstd"), 0
        writer.write_table(batch.replace_schema_metadata(schema.metadata))
        total += batch.num_rows
        held += batch.num_rows
        if held >= ROWS_PER_FILE:
            writer.close()
            writer, number = None, number + 1
    if writer is not None:
        writer.close()
    elif number == 1:
        pq.ParquetWriter(folder / Slot(1).part, schema).close()  # no row group: readers choke on one without rows
    return total
