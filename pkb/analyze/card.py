"""The card of an exported data set: front matter for the hub, then what a reader must know before using the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pkb.analyze.runs import Run
from pkb.analyze.settings import setting_of
from pkb.analyze.tables import Tables
from pkb.store.schema import SCHEMA_VERSION

_ABOUT = {
    "problems": "What was asked: one row per problem, with the reference that models see.",
    "generations": "What models answered: one row per turn of an attempt, with prompt, answer, extracted source, usage and cost.",
    "evaluations": "What became of each answer: verdict, evidence, times; one row per turn, with the same key.",
}


def card(run: Run, found: Tables, schemas: Mapping[str, pa.Schema], counts: Mapping[str, int]) -> str:
    """README.md of the data set: front matter, origin, results, how to load it, columns, licence."""
    return "\n".join([_front_matter(schemas, counts), _text(run, found, counts), _columns(schemas), _LICENCE])


def _front_matter(schemas: Mapping[str, pa.Schema], counts: Mapping[str, int]) -> str:
    rows = max(counts.values())
    sizes = ((1000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))
    size = next((name for limit, name in sizes if rows < limit), "n>10M")
    configs = "\n".join(f"- config_name: {name}\n  data_files: {name}/*.parquet" for name in schemas)
    return (
        "---\npretty_name: Multi-GPU kernels by language models\nlicense: other\nlicense_name: apache-2.0-and-model-terms\n"
        f"tags: [code, cuda, gpu, benchmark]\nsize_categories: [{size}]\nconfigs:\n{configs}\n---\n"
    )


def _text(run: Run, found: Tables, counts: Mapping[str, int]) -> str:
    notes = (
        ["", "What to know of these rows:", "", *(f"- {run.without_paths(note)}" for note in found.notes)]
        if found.notes
        else []
    )
    setting = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in setting_of(run).items())
    lines = [
        f"# Multi-GPU kernels by language models: run {run.label}",
        "",
        "Answers of language models that were asked to replace a PyTorch program with collective communication by a kernel that",
        "communicates directly between GPUs, and what became of each when it was built, run and timed. Made with `pkb`; the",
        "problem set is that of ParallelKernelBench (Chan, Paek, Guo, Arora, Fu, 2026; Apache-2.0).",
        "",
        f"Run of {run.meta.get('created', 'unknown date')}, measured with: {setting}.",
        "`run.yaml` has the whole configuration and the versions.",
        f"Rows: {', '.join(f'{n} {name}' for name, n in counts.items())}. Schema version {SCHEMA_VERSION}.",
        *notes,
        "",
        "## Results",
        "",
        "Shares of problems with 95 % intervals (bootstrap over problems); attempts that the provider or the harness lost are",
        "outside the denominators.",
        "",
        *_results(found),
        "",
        "## Loading",
        "",
        "```python",
        "import polars as pl",
        "",
        'evaluations = pl.scan_parquet("evaluations/*.parquet")',
        "# or: datasets.load_dataset(<this folder>, 'evaluations')",
        "```",
        "",
        "`run, model, problem, attempt, turn` identify a row in generations and evaluations; `problem` joins problems. Columns",
        "marked JSON hold objects as text. Times are milliseconds per call of the slowest rank; `speedup` is the median ratio of",
        "reference to candidate with its interval; rows with `shared_device` must not be counted as fast.",
        "",
    ]
    return "\n".join(lines)


def _results(found: Tables) -> list[str]:
    names = [f"{m}@{k}" for m in ("pass", "fast1") for k in found.ks]
    values = {(r["run"], r["model"], r["metric"]): r for r in found.headline.iter_rows(named=True)}
    rows = [f"| model | attempts | {' | '.join(names)} |", f"|---|{'---|' * (len(names) + 1)}"]
    for row in found.counts.iter_rows(named=True):
        cells = [_share(values.get((row["run"], row["model"], name))) for name in names]
        rows.append(f"| {str(row['model']).replace('|', '/')} | {row['attempted']} | {' | '.join(cells)} |")
    return rows


def _share(row: Mapping[str, Any] | None) -> str:
    if row is None or row["value"] is None:
        return "-"
    interval = "" if row["low"] is None else f" [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"
    return f"{100 * row['value']:.0f} %{interval}"


def _columns(schemas: Mapping[str, pa.Schema]) -> str:
    lines = ["## Columns", ""]
    for name, schema in schemas.items():
        lines += [f"### {name}", "", _ABOUT[name], "", "| column | type | may be null |", "|---|---|---|"]
        lines += [
            f"| {f.name} | {f.type}{' (JSON)' if f.name in _JSON else ''} | {'yes' if f.nullable else 'no'} |" for f in schema
        ]
        lines.append("")
    return "\n".join(lines)


_JSON = {"sent", "usage", "seconds_by_stage", "extra", "sizes"}
_LICENCE = """## Licence

Problems, references and measurements: Apache-2.0. Answers (`answer`, `reasoning`, `source`) were written by models; the terms of
their providers apply to them, and they may repeat code that others hold rights in. They are untrusted: do not run them outside a
sandbox.
"""
