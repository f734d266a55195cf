"""``pkb report``: the tables of one or several runs as terminal tables, JSON or a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pkb.errors import UserError

#: Version of the JSON report; a field that changes its name or meaning raises it.
REPORT_VERSION = 1
FORMATS = ("table", "json")


def render(runs: Sequence[Path], format: str = "table", out: Path | None = None, policy: str = "run") -> str | None:
    """The report as text, or None when it went to ``out`` (a file, replaced whole).

    format: "table", or "json" (``as_json``). Raises UserError for an unknown format or a path that is no run.
    """
    if format not in FORMATS:
        raise UserError(f"--format {format}: must be one of {', '.join(FORMATS)}")
    from pkb.analyze.tables import tables

    found = tables(runs, policy)
    text = _as_text(found) if format == "table" else json.dumps(as_json(found), indent=1, allow_nan=False) + "\n"
    if out is None:
        return text
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_name(out.name + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from None
    return None


def as_json(found: Any) -> dict[str, Any]:
    """The report as plain data.

    report_version; runs: label, directory, and what decides the results (config, versions, hardware as run.yaml has them); then
    the frames of ``pkb.analyze.tables.Tables`` under their names, each a list of rows; ``notes``. Undefined numbers are null.
    """
    frames = ("counts", "headline", "verdicts", "missing", "categories", "projects", "curves", "differences")
    return {
        "report_version": REPORT_VERSION,
        "runs": [{"run": r.label, "directory": r.path.name, **_meta(r.meta)} for r in found.runs],
        "ks": list(found.ks),
        **{name: getattr(found, name).to_dicts() for name in frames},
        "notes": list(found.notes),
    }


def _meta(meta: Any) -> dict[str, Any]:
    """run.yaml without its name, as JSON takes it (YAML dates become text)."""
    return {k: v for k, v in json.loads(json.dumps(meta, default=str)).items() if k != "run"}


def _as_text(found: Any) -> str:
    import io

    from rich.console import Console

    from pkb.analyze.terminal import summary_tables

    buffer = io.StringIO()
    console = Console(file=buffer, width=120)
    for table in summary_tables(found):
        console.print(table, highlight=False)
    return buffer.getvalue()
