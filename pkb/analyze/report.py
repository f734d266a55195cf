"""``pkb report``: the tables of one or several runs as terminal tables, JSON or a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pkb.errors import UserError
from pkb.files import write_atomic

if TYPE_CHECKING:
    from pkb.analyze.details import Details
    from pkb.analyze.tables import Tables

#: Version of the JSON report; a field that changes its name or meaning raises it.
REPORT_VERSION = 1
FORMATS = ("table", "json", "html")


def render(
    runs: Sequence[Path], format: str = "table", out: Path | None = None, policy: str = "run", assets: bool = False
) -> str | None:
    """The report as text, or None when it went to ``out`` (a file, replaced whole).

    format: "table", "json" (``as_json``) or "html" (``pkb.analyze.page``), which needs ``out``. policy: "any" takes candidates
    that broke the run's policy by their values alone. assets: texts of all attempts in a folder beside the page.
    Raises UserError for an unknown format, a path that is no run, or a file that cannot be written.
    """
    if format not in FORMATS:
        raise UserError(f"--format {format}: must be one of {', '.join(FORMATS)}")
    if format == "html" and out is None:
        raise UserError("a page is several megabytes; say where it goes, e.g. --format html --out report.html")
    from pkb.analyze.runs import once_told
    from pkb.analyze.tables import tables

    found = tables(runs, policy)
    with once_told(found.runs):
        if format != "html":
            text = _as_text(found, policy) if format == "table" else _json_text(found, policy)
        if out is None:
            return text
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            if format == "html":
                from pkb.analyze.page import write_page

                write_page(found, out, assets, policy)
            else:
                write_atomic(out, text)
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror or error}") from None
    return None


def as_json(found: Tables, more: Details) -> dict[str, Any]:
    """The report as plain data.

    report_version; runs: label, directory, and what decides the results (config, versions, hardware as run.yaml has them); ks;
    then the frames of ``pkb.analyze.tables.Tables`` and ``pkb.analyze.details.Details`` under their names, each a list of rows;
    notes. Undefined numbers are null.
    """
    frames = {name: getattr(found, name) for name in found.FRAMES} | {name: getattr(more, name) for name in more.FRAMES}
    return {
        "report_version": REPORT_VERSION,
        "runs": [{"run": r.label, "directory": r.path.name, **r.described()} for r in found.runs],
        "ks": list(found.ks),
        **{name: frame.to_dicts() for name, frame in frames.items()},
        "notes": [*found.notes, *more.notes],
    }


def _json_text(found: Tables, policy: str) -> str:
    from pkb.analyze.details import details

    return json.dumps(as_json(found, details(found.runs, policy)), indent=1, allow_nan=False) + "\n"


def _as_text(found: Tables, policy: str) -> str:
    import io

    from rich.console import Console

    from pkb.analyze.terminal import summary_tables, turn_tables

    buffer = io.StringIO()
    console = Console(file=buffer, width=120)
    for part in [*summary_tables(found), *turn_tables(found.runs, policy)]:
        console.print(part, highlight=False)
    return buffer.getvalue()
