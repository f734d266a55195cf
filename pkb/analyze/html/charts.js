// Charts, drawn with Plotly in the colours of the page; a click leads to the attempts behind a mark.

const CONFIG = { responsive: true, displayModeBar: false };

function layout(more) {
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = ['--ink', '--line'].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const { xaxis, yaxis, ...rest } = more;
  return {
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    font: { color: ink, size: 13 },
    margin: { t: 16, r: 16, b: 48, l: 56 },
    legend: { orientation: 'h', x: 0, y: 1.02, yanchor: 'bottom' },
    hovermode: 'closest',
    ...rest,
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
  };
}

/** Draw, or say that there is nothing to draw. A mark's customdata is the hash that a click on it goes to. Height: pixels. */
function draw(id, traces, more, height) {
  const target = byId(id);
  if (!traces.some((t) => (t.x ?? t.y ?? []).length)) {
    Plotly.purge(target);
    target.style.height = 'auto';
    target.replaceChildren(element('p', { class: 'quiet' }, 'No attempt has the figures for this chart.'));
    return;
  }
  if (document.documentElement.dataset.printing) Plotly.purge(target); // so that it measures the page, not the window
  if (!target.classList.contains('js-plotly-plot')) target.replaceChildren();
  target.style.height = height ? `${height}px` : '';
  Plotly.react(target, traces, layout(more), CONFIG);
  target.removeAllListeners?.('plotly_click');
  target.on('plotly_click', (event) => {
    const place = event.points[0].customdata;
    if (place) location.hash = place;
  });
}

function drawCurves() {
  const k = Number(byId('curve-k').value);
  const rows = rowsOf('curves').filter((r) => r.k === k);
  const traces = shownSeries().map((s) => {
    const mine = rows.filter((r) => r.series === s && r.value !== null);
    return {
      name: escapeLabel(s),
      x: mine.map((r) => r.p),
      y: mine.map((r) => r.value),
      mode: 'lines',
      line: { color: colorOf(s), dash: dashOf(s), width: 2.5 },
      customdata: mine.map((r) => attemptsHash({ series: s, verdict: 'correct', faster: r.p })),
      hovertemplate: `p > %{x}: %{y:.1%}<extra>${escapeLabel(s)}</extra>`,
    };
  });
  draw('curve-chart', traces, {
    xaxis: { title: { text: 'p (speedup over the reference)' }, range: [0, 4] },
    yaxis: { title: { text: `fast_p@${k}` }, tickformat: '.0%', rangemode: 'tozero' },
    shapes: [{ type: 'line', x0: 1, x1: 1, y0: 0, y1: 1, yref: 'paper', line: { width: 1, dash: 'dot', color: '#888' } }],
  });
}

/** Plotly reads a few HTML tags in labels; a model's name must not make any. */
const escapeText = (text) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
/** Names of models as charts show them: short, and different from each other, since an axis joins what has one name. */
function shortLabels() {
  const longest = window.innerWidth < 600 ? 18 : 36;
  const seen = new Map();
  return SERIES.map(({ label }) => {
    const half = Math.floor((longest - 1) / 2);
    const short = label.length > longest ? `${label.slice(0, half)}…${label.slice(-half)}` : label;
    const count = (seen.get(short) ?? 0) + 1;
    seen.set(short, count);
    return escapeText(count > 1 ? `${short} (${count})` : short);
  });
}
let labels = shortLabels();
const escapeLabel = (series) => labels[series];
const LOG_TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100];
const speedAxis = (title) => ({
  title: { text: title },
  type: 'log',
  tickvals: LOG_TICKS,
  ticktext: LOG_TICKS.map((t) => `${t}x`),
});

function stackedShares(id, rows, kind, count, colors, order) {
  const series = shownSeries().filter((s) => rows.some((r) => r.series === s));
  const totals = new Map(series.map((s) => [s, rows.filter((r) => r.series === s).reduce((sum, r) => sum + r[count], 0)]));
  const traces = order
    .filter((v) => rows.some((r) => r[kind] === v))
    .map((v, i) => {
      const mine = series.map((s) => rows.find((r) => r.series === s && r[kind] === v));
      return {
        type: 'bar',
        orientation: 'h',
        name: plain(v),
        y: series.map((s) => escapeLabel(s)),
        x: mine.map((r, j) => (r ? r[count] / totals.get(series[j]) : 0)),
        marker: { color: colors[v] ?? COLORS[i % COLORS.length] },
        text: mine.map((r) => (r ? String(r[count]) : '')),
        textposition: 'inside',
        insidetextanchor: 'middle',
        customdata: series.map((s) => attemptsHash({ series: s, [kind]: v, ...(kind === 'mechanism' && { stands: null }) })),
        hovertemplate: `%{y}: %{text} (%{x:.1%})<extra>${plain(v)}</extra>`,
      };
    });
  const axes = { xaxis: { tickformat: '.0%', range: [0, 1] }, yaxis: { autorange: 'reversed' } };
  draw(
    id,
    traces,
    {
      barmode: 'stack',
      bargap: 0.3,
      legend: { traceorder: 'normal', orientation: 'h', x: 0, y: 1.02, yanchor: 'bottom' },
      ...axes,
    },
    150 + 36 * series.length,
  );
}

function drawFailures() {
  const rows = rowsOf('verdicts').filter((r) => shown(r.series) && r.verdict !== 'harness_error');
  stackedShares('failure-chart', rows, 'verdict', 'attempts', VERDICT_COLORS, verdictsIn(rows));
}

function drawMechanisms() {
  const rows = rowsOf('mechanisms').filter((r) => shown(r.series));
  const colors = {
    nvls: '#4477aa',
    tma: '#66ccee',
    'load/store': '#228833',
    'copy engine': '#ccbb44',
    collective: '#ee6677',
    none: '#bbbbbb',
  };
  stackedShares('mechanism-chart', rows, 'mechanism', 'candidates', colors, Object.keys(colors));
}

function drawRoofline() {
  const references = rowsOf('references');
  const runs = [...new Set(references.map((r) => r.run))];
  // A reference that sends less than the stated way can exceed 1.
  const end = references.reduce((most, r) => Math.max(most, Math.ceil(20 * r.utilisation) / 20 + 0.05), 1.05);
  draw(
    'reference-chart',
    runs.map((run, i) => ({
      type: 'histogram',
      name: escapeText(run),
      x: references.filter((r) => r.run === run).map((r) => r.utilisation),
      marker: { color: COLORS[i % COLORS.length] },
      opacity: 0.8,
      xbins: { start: 0, end, size: 0.05 },
      hovertemplate: '%{y} problems at %{x}<extra></extra>',
    })),
    {
      barmode: 'overlay',
      xaxis: { title: { text: 'utilisation of the reference' }, tickformat: '.0%', range: [0, end] },
      yaxis: { title: { text: 'problems' } },
      showlegend: runs.length > 1,
    },
  );
  const bounds = new Map(references.map((r) => [JSON.stringify([r.run, r.problem]), r]));
  const traces = shownSeries().map((s) => {
    const mine = attemptRows().filter(
      (a) => a.series === s && isRight(a) && a.speedup !== null && bounds.has(JSON.stringify([SERIES[s].run, problemName(a)])),
    );
    const roof = (a) => bounds.get(JSON.stringify([SERIES[s].run, problemName(a)]));
    return {
      type: 'scatter',
      mode: 'markers',
      name: escapeLabel(s),
      x: mine.map((a) => roof(a).utilisation),
      y: mine.map((a) => a.speedup),
      marker: { color: colorOf(s), size: 8, opacity: 0.75 },
      customdata: mine.map((a) => `attempt=${a.row}`),
      text: mine.map(
        (a) =>
          `${escapeText(problemName(a))}<br>bound by ${roof(a).binding}<br>utilisation ${percent(roof(a).bound_ms / a.candidate_ms)}`,
      ),
      hovertemplate: '%{text}<br>speedup %{y:.2f}x<extra></extra>',
    };
  });
  draw('candidate-chart', traces, {
    xaxis: { title: { text: 'utilisation of the reference' }, tickformat: '.2~p', rangemode: 'tozero' },
    yaxis: speedAxis('speedup of the candidate'),
    shapes: [{ type: 'line', x0: 0, x1: 1, xref: 'paper', y0: 1, y1: 1, line: { width: 1, dash: 'dot', color: '#888' } }],
  });
}

function drawSpeedups() {
  const traces = shownSeries().map((s) => {
    const mine = attemptRows().filter((a) => a.series === s && isRight(a) && a.speedup !== null);
    return {
      type: 'box',
      orientation: 'h',
      name: escapeLabel(s),
      x: mine.map((a) => a.speedup),
      boxpoints: 'all',
      jitter: 0.5,
      pointpos: 0,
      marker: { color: colorOf(s), size: 5, opacity: 0.6 },
      line: { width: 1.5 },
      fillcolor: 'rgba(0,0,0,0)',
      customdata: mine.map((a) => `attempt=${a.row}`),
      text: mine.map((a) => escapeText(problemName(a))),
      hovertemplate: '%{text}: %{x:.2f}x<extra></extra>',
    };
  });
  draw(
    'speedup-chart',
    traces,
    {
      xaxis: speedAxis('speedup over the reference'),
      yaxis: { autorange: 'reversed' },
      showlegend: false,
      shapes: [{ type: 'line', y0: 0, y1: 1, yref: 'paper', x0: 1, x1: 1, line: { width: 1, dash: 'dot', color: '#888' } }],
    },
    120 + 60 * traces.length,
  );
}

function drawCost() {
  const metric = byId('cost-metric').value;
  const scores = new Map(
    rowsOf('headline')
      .filter((r) => r.metric === metric)
      .map((r) => [r.series, r]),
  );
  const known = rowsOf('counts').filter((r) => shown(r.series) && r.cost_usd !== null && (scores.get(r.series)?.value ?? null) !== null);
  draw(
    'cost-chart',
    known.map((r) => {
      const score = scores.get(r.series);
      const spread =
        score.low === null
          ? {}
          : {
              error_y: {
                type: 'data',
                symmetric: false,
                array: [score.high - score.value],
                arrayminus: [score.value - score.low],
                thickness: 1.2,
              },
            };
      return {
        type: 'scatter',
        mode: 'markers+text',
        name: escapeLabel(r.series),
        x: [r.cost_usd],
        y: [score.value],
        text: [escapeLabel(r.series)],
        textposition: 'top left',
        cliponaxis: false,
        marker: { color: colorOf(r.series), size: 12 },
        customdata: [attemptsHash({ series: r.series })],
        hovertemplate: `$%{x:.4f}: %{y:.1%}<extra>${escapeLabel(r.series)}</extra>`,
        ...spread,
      };
    }),
    {
      xaxis: { title: { text: 'cost of all attempts, US dollars' }, rangemode: 'tozero' },
      yaxis: { title: { text: metricName(metric) }, tickformat: '.0%', range: [0, 1.05] },
      showlegend: false,
    },
  );
}

function drawTurns() {
  if (!rowsOf('turns').length) return;
  const traces = shownSeries().flatMap((s) =>
    ['pass@1', 'fast1@1'].map((metric) => {
      const mine = rowsOf('turns').filter((r) => r.series === s && r.metric === metric);
      return {
        name: `${escapeLabel(s)} ${metric}`,
        x: mine.map((r) => r.turns),
        y: mine.map((r) => r.value),
        mode: 'lines+markers',
        line: { color: colorOf(s), dash: metric === 'pass@1' ? 'solid' : 'dot' },
        error_y: {
          type: 'data',
          symmetric: false,
          array: mine.map((r) => (r.high === null ? 0 : r.high - r.value)),
          arrayminus: mine.map((r) => (r.low === null ? 0 : r.value - r.low)),
          thickness: 1,
          width: 3,
        },
        text: mine.map((r) => dollars(r.cost_usd, 0)),
        hovertemplate: `after %{x} turns: %{y:.1%}, %{text} spent<extra>${escapeLabel(s)} ${metric}</extra>`,
      };
    }),
  );
  draw('turn-chart', traces, {
    xaxis: { title: { text: 'turns' }, dtick: 1 },
    yaxis: { title: { text: 'share of problems' }, tickformat: '.0%', rangemode: 'tozero' },
  });
}

function drawCharts() {
  labels = shortLabels();
  for (const one of [drawCurves, drawFailures, drawMechanisms, drawRoofline, drawSpeedups, drawCost, drawTurns]) one();
}
