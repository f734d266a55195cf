"""The page in a real browser: it draws without errors or network, its numbers lead to attempts, hostile text stays text."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pkb.analyze import drilldown
from pkb.analyze.report import render
from pkb.analyze.tables import tables
from pkb.errors import UserError
from tests.analyze.browser import CHROMIUM, Browser
from tests.analyze.demo import HOSTILE, MODELS, write_demo
from tests.analyze.rows import evaluation, generation, write_run

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of them with turns, and their pages."""
    made = tmp_path_factory.mktemp("page")
    write_demo(made / "demo")
    write_demo(made / "agentic", turns=4, name="agentic")
    render([made / "demo"], "html", made / "demo.html")
    render([made / "demo", made / "agentic"], "html", made / "two.html")
    render([made / "demo"], "html", made / "beside.html", assets=True)
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def settled(browser: Browser, page: Path) -> None:
    """Nothing went wrong, nothing was asked for but the page itself, and no text became code."""
    assert browser.errors == []
    assert {r for r in browser.requests if not r.startswith(("file:", "data:", "blob:"))} == set()
    assert browser.evaluate("document.title") == "pkb report"


def text_of(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))


def rows_of(browser: Browser) -> list[list[str]]:
    script = "[...document.querySelectorAll('#attempt-list tbody tr')].map((r) => [...r.cells].map((c) => c.innerText.trim()))"
    return list(browser.evaluate(script))


@needs_browser
@pytest.mark.parametrize("page", ["demo.html", "two.html", "beside.html"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_section_is_drawn_without_errors(browser: Browser, folder: Path, page: str, width: int, dark: bool) -> None:
    browser.open(folder / page, width=width, dark=dark)
    charts = "[...document.querySelectorAll('section:not([hidden]) .chart')]"
    assert browser.evaluate(f"{charts}.filter((c) => !c.querySelector('svg.main-svg')).map((c) => c.id)") == []
    assert browser.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert browser.evaluate("document.getElementById('turns').hidden") == (page != "two.html")
    settled(browser, folder / page)


@needs_browser
def test_the_leaderboard_has_the_numbers_of_the_tables(browser: Browser, folder: Path) -> None:
    browser.open(folder / "demo.html")
    found = tables([folder / "demo"])
    shown = browser.evaluate("""Object.fromEntries([...document.querySelectorAll('#board tbody tr')].map((r) => [
        r.cells[0].innerText.trim(), [...r.cells].slice(1, 5).map((c) => c.querySelector('a').innerText)]))""")
    for model in MODELS:
        mine = found.headline.filter(pl.col("model") == model)
        values = {r["metric"]: r["value"] for r in mine.iter_rows(named=True)}
        assert [int(s.split()[0]) for s in shown[model]] == [
            pytest.approx(100 * values[m], abs=0.51) for m in ("pass@1", "pass@3", "fast1@1", "fast1@3")
        ]


@needs_browser
def test_a_number_leads_to_the_attempts_behind_it(browser: Browser, folder: Path) -> None:
    browser.open(folder / "demo.html")
    browser.evaluate(
        "[...document.querySelectorAll('#board tbody tr')].find((r) => r.innerText.includes('demo-slow')).cells[3]"
        ".querySelector('a').click()"
    )  # fast1@1
    browser.wait("document.querySelector('#filters [name=verdict]').value === 'fast'")
    fast = tables([folder / "demo"]).counts.filter(pl.col("model") == "demo-slow")["fast"].item()
    assert text_of(browser, "#attempt-count") == f"{fast} attempts"
    rows = rows_of(browser)
    assert len(rows) == fast
    assert {r[1] for r in rows} == {"demo-slow"} and {r[3] for r in rows} == {"correct"}
    assert all(float(r[4].split("x")[0]) > 1 for r in rows)
    settled(browser, folder)


@needs_browser
@pytest.mark.parametrize("page", ["demo.html", "two.html"])
def test_verdict_counts_are_those_of_the_attempts_that_they_lead_to(browser: Browser, folder: Path, page: str) -> None:
    """An attempt of several turns counts once, by the turn that stands for it."""
    browser.open(folder / page)
    links = "[...document.querySelectorAll('#verdicts tbody a, #denominators a')]"
    for i in range(browser.evaluate(f"{links}.length")):
        wanted = int(browser.evaluate(f"{links}[{i}].innerText").split()[0])
        address = browser.evaluate(f"{links}[{i}].getAttribute('href')")
        browser.evaluate(f"location.hash = {json.dumps(address)}")
        browser.wait(f"document.getElementById('attempt-count').innerText.startsWith({json.dumps(f'{wanted} attempts')})")
    settled(browser, folder / page)


@needs_browser
def test_filters_narrow_the_list_and_reset(browser: Browser, folder: Path) -> None:
    browser.open(folder / "demo.html")
    everything = text_of(browser, "#attempt-count")
    browser.evaluate("""(() => { const f = document.getElementById('filters'); f.elements.verdict.value = 'mismatch';
        f.dispatchEvent(new Event('change', {bubbles: true})); })()""")
    browser.wait("location.hash.includes('verdict=mismatch')")
    browser.wait("[...document.querySelectorAll('#attempt-list tbody tr')].every((r) => r.innerText.includes('mismatch'))")
    assert 0 < len(rows_of(browser)) < int(everything.split()[0])
    browser.evaluate("document.querySelector('#filters button[type=reset]').click()")
    browser.wait(f"document.getElementById('attempt-count').innerText === {json.dumps(everything)}")


@needs_browser
@pytest.mark.parametrize("page", ["demo.html", "beside.html"])
def test_an_attempt_shows_all_that_is_known_of_it(browser: Browser, folder: Path, page: str) -> None:
    browser.open(folder / page)
    browser.evaluate("location.hash = 'attempts?verdict=compile_error'")
    browser.wait("document.querySelector('#attempt-list tbody tr')?.innerText.includes('compile error')")
    browser.evaluate("document.querySelector('#attempt-list tbody a').click()")
    browser.wait("document.querySelector('#detail pre .k') !== null")
    browser.evaluate("for (const d of document.querySelectorAll('#detail details')) d.open = true")
    shown = text_of(browser, "#detail")
    for wanted in (
        *("compile error", 'identifier "foo" is undefined', "hash-0", "trial 2 (wide), rank 1", "input 1200; output 800"),
        *("__global__ void gather", "Here it is.", "build 3.25", "RuntimeError:", "line 3: x", "Write 0"),
    ):
        assert wanted in shown, wanted
    assert HOSTILE in shown
    assert browser.evaluate("document.querySelectorAll('#detail img, #detail script').length") == 0
    browser.evaluate("document.querySelector('#detail button').click()")
    browser.wait("!document.getElementById('detail').open")
    settled(browser, folder / page)


@needs_browser
def test_a_folder_that_is_not_there_is_said(browser: Browser, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "beside.html", tmp_path / "alone.html")
    browser.open(tmp_path / "alone.html")
    before = len(browser.errors)
    browser.evaluate("location.hash = 'attempt=0'")
    browser.wait("document.getElementById('detail').innerText.includes('which is not beside this file')")
    del browser.errors[before:]  # the browser names the missing file


@needs_browser
def test_models_can_be_switched_off_and_the_theme_turned(browser: Browser, folder: Path) -> None:
    browser.open(folder / "demo.html")
    browser.evaluate("document.querySelector('#models button').click()")
    assert browser.evaluate("document.querySelectorAll('#board tbody tr').length") == len(MODELS) - 1
    assert browser.evaluate("document.querySelectorAll('#curve-chart .legend .traces').length") == len(MODELS) - 1
    ink = browser.evaluate("document.querySelector('#curve-chart .xtick text').style.fill")
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate("document.querySelector('#curve-chart .xtick text').style.fill") != ink
    settled(browser, folder)


@needs_browser
def test_a_mark_in_a_chart_leads_to_its_attempt(browser: Browser, folder: Path) -> None:
    browser.open(folder / "demo.html")
    browser.evaluate("""(() => { const chart = document.getElementById('candidate-chart');
        chart.emit('plotly_click', {points: [{customdata: chart.data[0].customdata[0]}]}); })()""")
    browser.wait("document.getElementById('detail').open")
    assert "correct" in text_of(browser, "#detail dd")


@needs_browser
def test_it_prints_on_light_paper(browser: Browser, folder: Path, tmp_path: Path) -> None:
    browser.open(folder / "two.html", dark=True)
    browser.evaluate(
        "window.seen = ''; window.addEventListener('beforeprint', () => { seen = document.documentElement.dataset.theme; })"
    )
    browser.pdf(tmp_path / "page.pdf")
    browser.wait("document.documentElement.dataset.theme === 'dark'")
    assert browser.evaluate("seen") == "light"
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    settled(browser, folder)


def test_text_cannot_end_the_script_that_holds_it(folder: Path) -> None:
    page = (folder / "demo.html").read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page
    assert len(re.findall("<script ", page)) == len(re.findall("</script>", page))


def test_it_needs_a_file_to_go_to(folder: Path) -> None:
    with pytest.raises(UserError, match=r"--out report\.html"):
        render([folder / "demo"], "html")


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    render([write_run(tmp_path / "run", [])], "html", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 6_000_000


def test_a_large_run_is_represented(tmp_path: Path) -> None:
    rows = [
        evaluation("m", problem, a, "correct" if a % 4 == 0 else "mismatch", 1 + a / 100 if a % 4 == 0 else None)
        for problem in ("001_allreduce", "002_allgather")
        for a in range(200)
    ]
    run = write_run(tmp_path / "run", rows)
    evaluations, generations = drilldown.labelled(tables([run]).runs)
    chosen = drilldown.listed(evaluations, generations, limit=100)
    assert chosen.total == 400 and chosen.index.height <= 100
    for problem in ("001_allreduce", "002_allgather"):
        mine = chosen.index.filter(pl.col("problem") == problem)
        assert {196, 192, 188} <= set(mine["attempt"])  # the fastest three
        assert mine.filter(pl.col("verdict") == "mismatch").height == 3


def test_texts_stop_at_the_budget_and_keep_the_best_first() -> None:
    documents = ((i, {"source": f"{i:06d}" + "x" * 1000}) for i in range(5000))
    kept = list(drilldown.chunks(documents, budget=20_000))
    assert sum(len(text) for _, text in kept) <= 20_000
    rows = [row for piece, _ in kept for row in piece]
    assert rows == list(range(len(rows))) and 0 < len(rows) < 5000
    assert len([row for piece, _ in drilldown.chunks(((i, {}) for i in range(50)), budget=None) for row in piece]) == 50


@needs_browser
def test_missing_figures_are_dashes(browser: Browser, tmp_path: Path) -> None:
    rows = [
        evaluation("m", "001_allreduce", 0, "correct", 2.0, speedup_low=None, speedup_high=None, candidate_ms=None),
        evaluation("m", "099_unknown", 0, "correct", None, shared_device=True),
        evaluation("m", "002_allgather", 0, "a_verdict_of_tomorrow", extra="not json"),
    ]
    render([write_run(tmp_path / "run", rows)], "html", tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    for row in range(3):
        browser.evaluate(f"location.hash = 'attempt={row}'")
        browser.wait("document.getElementById('detail').open && document.querySelector('#detail dl')")
    settled(browser, tmp_path)


def test_numbers_without_a_json_form_do_not_stop_a_page(tmp_path: Path) -> None:
    rows = [
        evaluation("m", "001_allreduce", 0, "mismatch", max_error=float("inf"), extra='{"share": NaN, "worst": -Infinity}'),
        evaluation("m", "001_allreduce", 1, "correct", float("nan")),
    ]
    run = write_run(tmp_path / "run", rows)
    render([run], "html", tmp_path / "page.html")
    evaluations, generations = drilldown.labelled(tables([run]).runs)
    index = drilldown.listed(evaluations, generations).index
    shown = dict(drilldown.texts(evaluations, generations, index))
    assert shown[0]["extra"] == {"share": "NaN", "worst": "-Infinity"}


@needs_browser
@pytest.mark.parametrize("answers", [[], [generation("m", "001_allreduce", 0)]])
def test_a_run_of_which_nothing_is_judged_yet_has_a_page(
    browser: Browser, tmp_path: Path, answers: list[dict[str, Any]]
) -> None:
    render([write_run(tmp_path / "run", [], answers)], "html", tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert text_of(browser, "#attempt-count") == "0 attempts"
    settled(browser, tmp_path)
