"""Shares of communication mechanisms per model, from what the evaluator stored with each row."""

from __future__ import annotations

import polars as pl

MODEL = ["run", "model"]


def mechanism_of(extra: pl.Expr) -> pl.Expr:
    """The primary mechanism in the JSON column ``extra``; null where none was recorded."""
    return extra.str.json_path_match("$.mechanism.primary")


def mechanism_shares(evaluations: pl.LazyFrame) -> pl.DataFrame:
    """run, model, mechanism, candidates, correct, and share: of the model's candidates whose mechanism was recorded.

    A candidate is one row: one turn of one attempt. Reads a text column, so it is apart from the other tables.
    """
    known = evaluations.select(*MODEL, "verdict", mechanism=mechanism_of(pl.col("extra"))).filter(
        pl.col("mechanism").is_not_null()
    )
    counted = known.group_by(*MODEL, "mechanism").agg(
        candidates=pl.len().cast(pl.Int64), correct=(pl.col("verdict") == "correct").sum().cast(pl.Int64)
    )
    shares = counted.with_columns(share=pl.col("candidates") / pl.col("candidates").sum().over(MODEL))
    return shares.sort(*MODEL, "candidates", "mechanism", descending=[False, False, True, False]).collect(engine="streaming")
