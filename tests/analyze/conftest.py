"""While the store has no reader, the analysis is tested over plain part files."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from pkb.store import schema


def _scan(run: Path, table: str) -> pl.LazyFrame:
    parts = sorted((run / table).glob("part-*.parquet"))
    if parts:
        return pl.scan_parquet(parts)
    empty = pl.from_arrow(pa.Table.from_pylist([], schema=schema.TABLES[table]))
    assert isinstance(empty, pl.DataFrame)
    return empty.lazy()


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("pkb.store.reader") is None:
        module = types.ModuleType("pkb.store.reader")
        module.scan = _scan  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pkb.store.reader", module)
