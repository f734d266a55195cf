"""``pkb report --format html``: one file that holds everything it shows, and asks no network for anything.

The page is data (JSON in script elements, the bulk of it compressed) and our own script, which draws it with Plotly. Answers of
models are untrusted text: they are data here, and the script only ever sets them as text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import polars as pl

from pkb.analyze import drilldown
from pkb.analyze.details import Details, details
from pkb.analyze.runs import about
from pkb.analyze.tables import Tables

_SCRIPTS = ("base.js", "board.js", "charts.js", "attempts.js", "detail.js", "highlight.js", "main.js")
#: Characters of packed texts that one file holds; with Plotly (4.8 MB) and the tables it stays under 15 MB.
BUDGET = 7_500_000


def write_page(found: Tables, out: Path, assets: bool = False, policy: str = "run") -> None:
    """Write the page to ``out``; with ``assets`` the texts of all listed attempts go to a folder ``<stem>_files`` beside it."""
    from plotly.offline import get_plotlyjs

    from pkb.files import write_atomic

    more = details(found.runs, policy)
    rows, answers = drilldown.labelled(found.runs)
    attempts = drilldown.listed(rows, answers, policy)
    pieces = drilldown.chunks(drilldown.texts(rows, answers, attempts.index), None if assets else BUDGET)
    where: dict[int, int] = {}
    inside: list[str] = []
    folder = out.with_name(f"{out.stem}_files")
    if assets:
        folder.mkdir(parents=True, exist_ok=True)
    for number, (documents, text) in enumerate(pieces):
        where |= dict.fromkeys(documents, number)
        if assets:
            write_atomic(folder / f"attempts-{number}.js", f'PKB_TEXTS({number},"{text}");\n')
        else:
            inside.append(_packed_element(f"texts-{number}", text))
    data = page_data(found, more)
    data |= {"total": attempts.total, "assets": folder.name if assets else None}
    index = _index(attempts.index, data["series"], data["problems"], where)
    body = [
        _script("application/json", "data", json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")),
        _packed_element("index", drilldown.packed(index)),
        _packed_element("prompts", drilldown.packed(drilldown.prompts(answers, attempts.index))),
        *inside,
        _script("text/javascript", "plotly", get_plotlyjs()),
        _script("text/javascript", "page", _page_script()),
    ]
    template = _resource("index.html").replace("/*STYLE*/", _resource("style.css"))
    write_atomic(out, template.replace("<!--DATA-->", "\n".join(body)))


def page_data(found: Tables, more: Details) -> dict[str, Any]:
    """Everything that the page shows but the attempts: the frames of Tables and Details, column by column, and what names them.

    series: run, model and label of everything that is compared. problems: name, title, category, project, deviations.
    """
    several = len(found.counts["run"].unique()) > 1
    series = [
        {"run": r, "model": m, "label": f"{m} · {r}" if several else m} for r, m in found.counts.select("run", "model").rows()
    ]
    notes = (*found.notes, *more.notes)
    held = [name for name in Tables.FRAMES if name != "excluded"]  # the list of attempts has these
    frames = {name: getattr(found, name) for name in held} | {name: getattr(more, name) for name in Details.FRAMES}
    return {
        "runs": [{"run": r.label, "directory": r.path.name, "meta": r.described()} for r in found.runs],
        "ks": list(found.ks),
        "series": series,
        "problems": [{"name": p, **about(p).as_dict()} for p in sorted(found.cells["problem"].unique())],
        "frames": {name: _columns(frame) for name, frame in frames.items()},
        "notes": [functools.reduce(lambda text, run: run.without_paths(text), found.runs, n) for n in notes],
    }


def _columns(frame: pl.DataFrame) -> dict[str, list[Any]]:
    """Columns as lists; numbers with the six digits that a page can show, those that JSON cannot say as null."""
    numbers = pl.selectors.float()
    short = frame.with_columns(pl.when(numbers.is_finite()).then(numbers.round_sig_figs(6)))
    return {name: values.to_list() for name, values in short.to_dict().items()}


def _index(
    index: pl.DataFrame, series: Sequence[dict[str, Any]], problems: Sequence[dict[str, Any]], where: dict[int, int]
) -> dict[str, list[Any]]:
    """The listed attempts, column by column, with models and problems by number; ``piece`` says where the texts are, or null."""
    places = {(s["run"], s["model"]): i for i, s in enumerate(series)}
    names = {p["name"]: i for i, p in enumerate(problems)}
    columns = _columns(index.drop("run", "model", "problem", "rank"))
    return {
        "series": [places.get(key) for key in index.select("run", "model").rows()],
        "problem": [names.get(name) for name in index["problem"]],
        **columns,
        "piece": [where.get(i) for i in range(index.height)],
    }


def _page_script() -> str:
    return "(() => {\n'use strict';\n" + "\n".join(_resource(name) for name in _SCRIPTS) + "\n})();"


def _resource(name: str) -> str:
    return resources.files("pkb.analyze").joinpath("html", name).read_text(encoding="utf-8")


def _script(kind: str, ident: str, text: str) -> str:
    """A script element whose text cannot end it."""
    closed = text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return f'<script type="{kind}" id="{ident}">{closed}</script>'


def _packed_element(ident: str, text: str) -> str:
    return f'<script type="text/plain" class="packed" id="{ident}">{text}</script>'
