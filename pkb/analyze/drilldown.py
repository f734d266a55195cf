"""The attempts behind a report's numbers: which are shown, and their texts, packed small."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pkb.analyze import metrics
from pkb.analyze.metrics import CELL
from pkb.analyze.runs import Run, evaluations, generations
from pkb.analyze.settings import apart
from pkb.analyze.shares import mechanism_of
from pkb.verdict import GenerationStatus

KEY = ["run", "model", "problem", "attempt", "turn"]
#: Rows of evaluations that a report lists at most; a larger run is represented by a choice of them.
LISTED = 20_000
#: Characters of one text that a page keeps; the Parquet has the rest.
LONGEST = {"answer": 60_000, "reasoning": 20_000, "source": 60_000, "build_log": 20_000, "detail": 8_000, "extra": 20_000}
_BATCH = 4000
_CHUNK = 400_000  # bytes of JSON in one compressed piece: small enough to open at once on a phone
_NUMBERS = ("speedup", "speedup_low", "speedup_high", "reference_ms", "candidate_ms", "max_error", "shared_device", "stage")


@dataclass(frozen=True)
class Attempts:
    """What a page lists. index: one row per shown turn, with ``rank`` (what to keep texts of first) and ``stands`` (whether the
    turn stands for its attempt in the tables); total: rows there are."""

    index: pl.DataFrame
    total: int


def labelled(runs: Sequence[Run]) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """All evaluations and generations of these runs, whole, with the same ``run`` labels as the tables."""
    pairs = [apart(r, evaluations(r), generations(r)) for r in runs]
    rows, answers = (pl.concat(frames) for frames in zip(*pairs, strict=True))
    return rows, answers


def listed(rows: pl.LazyFrame, answers: pl.LazyFrame, policy: str = "run", limit: int = LISTED) -> Attempts:
    """The rows to list: all of them, or per model and problem the fastest three and two of every verdict, up to ``limit``.

    Attempts that the provider lost are listed with their generation's status in place of a verdict.
    """
    judged = rows.select(*KEY, metrics.verdict_under(policy), *_NUMBERS)
    outside = [s.value for s in GenerationStatus if not s.counts]
    lost = answers.filter(pl.col("status").is_in(outside)).select(*KEY, verdict="status")
    every = pl.concat([judged, lost], how="diagonal").unique(KEY, keep="last")
    total = every.select(pl.len()).collect().item()
    eligible = (pl.col("verdict") == "correct") & ~pl.col("shared_device")
    speed = pl.when(eligible).then(pl.col("speedup"))
    ranked = every.sort(KEY).with_columns(
        rank=pl.min_horizontal(
            pl.int_range(pl.len()).over([*CELL, "verdict"]), speed.rank("ordinal", descending=True).over(CELL) - 1
        )
    )
    if total > limit:
        ranked = ranked.filter(pl.col("rank") < 3).sort("rank", *KEY).head(limit)
    index = ranked.sort(KEY).collect()
    told = _of(rows.select(*KEY, mechanism=mechanism_of(pl.col("extra"))), index).unique(KEY, keep="last")
    index = index.join(told, on=KEY, how="left", maintain_order="left")
    return Attempts(index.with_columns(_stands(rows, answers, index, policy)), total)


def _stands(rows: pl.LazyFrame, answers: pl.LazyFrame, index: pl.DataFrame, policy: str) -> pl.Series:
    """For every row of the index, whether it is the turn of its attempt that the tables count, or the answer that was lost."""
    tries, lost = metrics.without_lost(metrics.attempts(rows, policy), answers)
    counted = tries.select(*KEY, stands=True).unique().collect(engine="streaming")
    gone = lost.select(*metrics.ATTEMPT, verdict="status", gone=True)
    found = index.join(counted, on=KEY, how="left", maintain_order="left")
    found = found.join(gone, on=[*metrics.ATTEMPT, "verdict"], how="left", maintain_order="left")
    return found.select(stands=pl.col("stands").fill_null(False) | pl.col("gone").fill_null(False)).to_series()


def texts(rows: pl.LazyFrame, answers: pl.LazyFrame, index: pl.DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row of the index, document) in order of rank: what is shown of one turn, long texts cut.

    Only the texts of listed rows are kept in memory, some thousand at a time; each batch goes through the tables once.
    """
    order = index.with_row_index("row").sort("rank", "row")
    for start in range(0, order.height, _BATCH):
        wanted = order[start : start + _BATCH]
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for table in (answers, rows):
            columns = [c for c in table.collect_schema().names() if c in (*KEY, *_SHOWN)]
            for row in _of(table.select(columns), wanted).iter_rows(named=True):
                found.setdefault(tuple(row[k] for k in KEY), {}).update(row)
        for row in wanted.iter_rows(named=True):
            yield row["row"], _document(found.get(tuple(row[k] for k in KEY), {}))


def _of(table: pl.LazyFrame, wanted: pl.DataFrame) -> pl.DataFrame:
    """The rows of ``table`` whose keys are in ``wanted``.

    A filter on names that Parquet stores goes into the scan, which then decodes the texts of matching rows only; a join alone
    would hold the texts of all rows in memory. The join afterwards tells apart runs that share names.
    """
    ident = pl.concat_str(KEY[1:], separator="\x1f")
    names = wanted.select(ident).to_series().unique()
    few = table.filter(ident.is_in(names.implode())).collect(engine="streaming")
    return few.join(wanted.select(KEY), on=KEY, how="semi")


_SHOWN = (
    *("status", "prompt_hash", "answer", "reasoning", "source", "extraction", "finish_reason", "sent", "usage", "cost_usd"),
    *("seconds", "tries", "request_id", "error", "detail", "stage", "measured", "trials", "world_size", "size", "dtype"),
    *("device", "reuses_output", "collective_bytes", "sandbox", "policy", "protocol", "build_log", "seconds_by_stage", "node"),
    *("try", "log", "extra"),
)
_JSON = ("sent", "usage", "seconds_by_stage", "extra")


def _document(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: _cut(name, row[name]) for name in _SHOWN if row.get(name) not in (None, "", "{}")}
    for name in _JSON:
        try:
            shown[name] = json.loads(shown[name], parse_constant=str)
        except (KeyError, ValueError):
            continue  # absent, or cut: text is shown as it is
    return shown


def _cut(name: str, value: Any) -> Any:
    limit = LONGEST.get(name)
    if limit is None or len(value) <= limit:
        return value
    return f"{value[:limit]}\n[... {len(value) - limit} more characters in the Parquet]"


def prompts(answers: pl.LazyFrame, index: pl.DataFrame, limit: int = 4_000_000) -> dict[str, str]:
    """Prompt texts of the listed rows by hash, as many as fit in ``limit`` characters."""
    first = index.join(_hashes(answers, index), on=KEY).unique("prompt_hash", keep="first", maintain_order=True)
    found = _of(answers.select(*KEY, "prompt_hash", "prompt"), first)
    kept: dict[str, str] = {}
    for name, text in found.select("prompt_hash", "prompt").sort("prompt_hash").iter_rows():
        if sum(map(len, kept.values())) + len(text) <= limit:
            kept[name] = text
    return kept


def _hashes(answers: pl.LazyFrame, index: pl.DataFrame) -> pl.DataFrame:
    return _of(answers.select(*KEY, "prompt_hash"), index)


def packed(value: Any) -> str:
    """JSON, gzip, base64: what the page's script unpacks. Equal values give equal text."""
    data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def chunks(
    documents: Iterator[tuple[int, dict[str, Any]]], budget: int | None
) -> Iterator[tuple[dict[int, dict[str, Any]], str]]:
    """Documents in packed pieces, ``({row: document}, packed text)``, until the packed texts exceed ``budget`` characters."""
    piece: dict[int, dict[str, Any]] = {}
    size = spent = 0
    for row, document in documents:
        piece[row] = document
        size += len(json.dumps(document))
        if size >= _CHUNK:
            text = packed(piece)
            spent += len(text)
            if budget is not None and spent > budget:
                return
            yield piece, text
            piece, size = {}, 0
    if piece:
        text = packed(piece)
        if budget is None or spent + len(text) <= budget:
            yield piece, text
