// Tables: the leaderboard, differences, heat maps, verdicts, bounds, runs.

let boardOrder = { column: 'fast1@3', down: true };

function drawBoard() {
  const category = byId('board-category').value;
  const rows = rowsOf(category ? 'categories' : 'headline').filter((r) => !category || r.category === category);
  const of = new Map(rows.map((r) => [`${r.series}/${r.metric}`, r]));
  const counts = new Map(rowsOf('counts').map((r) => [r.series, r]));
  const metrics = [
    ...DATA.ks.map((k) => `pass@${k}`),
    ...DATA.ks.map((k) => `fast1@${k}`),
    `fast1_low@${DATA.ks[1]}`,
    `best@${DATA.ks[1]}`,
  ];
  const figure = (s, column) => (of.get(`${s}/${column}`) ?? {}).value ?? (counts.get(s) ?? {})[column] ?? null;
  const order = shownSeries().sort((a, b) => {
    const [x, y] = [figure(a, boardOrder.column), figure(b, boardOrder.column)];
    if (x === null || y === null) return (x === null) - (y === null);
    return boardOrder.down ? y - x : x - y;
  });
  const head = (column, label) => {
    const sorted = boardOrder.column === column ? (boardOrder.down ? 'descending' : 'ascending') : null;
    const turn = () => {
      boardOrder = { column, down: boardOrder.column === column ? !boardOrder.down : true };
      drawBoard();
    };
    return element(
      'th',
      { scope: 'col', 'aria-sort': sorted, title: METRIC_HELP[column.split('@')[0]] },
      element('button', { type: 'button', onclick: turn }, label),
    );
  };
  const money = category ? [] : [head('cost_usd', 'cost'), head('cost_per_correct', 'per correct')];
  const heads = [
    'model',
    ...metrics.map((m) => head(m, metricName(m))),
    head('speedup', 'speedup'),
    ...money,
    head('attempted', 'attempts'),
  ];
  const body = order.map((s) => {
    const filter = { series: s, category: category || null };
    const cost = counts.get(s) ?? {};
    const spent = category
      ? []
      : [
          attemptsLink({ series: s, stands: null }, dollars(cost.cost_usd, cost.cost_unknown)),
          attemptsLink({ series: s, verdict: 'correct' }, dollars(cost.cost_per_correct, cost.cost_unknown)),
        ];
    const speedup = of.get(`${s}/speedup`);
    return [
      element(
        'td',
        { class: 'name' },
        element('span', { class: 'swatch', style: `background:${colorOf(s)}` }),
        ' ',
        attemptsLink(filter, SERIES[s].label),
      ),
      ...metrics.map((m) => shareCell(of.get(`${s}/${m}`), { ...filter, verdict: m.startsWith('fast') ? 'fast' : 'correct' })),
      element('td', {}, attemptsLink({ ...filter, verdict: 'correct' }, times(speedup && speedup.value)), rangeText(speedup)),
      ...spent,
      element('td', {}, attemptsLink(filter, attemptsOf(s, category))),
    ];
  });
  fillTable('board', heads, body);
}

function attemptsOf(series, category) {
  const inside = (r) => !category || DATA.problems.find((p) => p.name === r.problem).category === category;
  return rowsOf('cells')
    .filter((r) => r.series === series && inside(r))
    .reduce((sum, r) => sum + r.n, 0);
}

const rangeText = (row) =>
  row && row.low !== null ? element('small', { class: 'value' }, `${row.low.toFixed(2)}-${row.high.toFixed(2)}`) : null;

/** A share with its interval, as numbers and as a bar from 0 to 1. */
function shareCell(row, filter) {
  if (!row || row.value === null) return element('td', { title: 'too few attempts for this k' }, '-');
  const known = row.low !== null;
  const dropped = row.dropped ? `; ${row.dropped} problems left out for want of attempts` : '';
  const interval = known ? `95 % interval ${percent(row.low)} to ${percent(row.high)}` : 'too few problems for an interval';
  const bar = element(
    'span',
    { class: 'interval' },
    known ? element('i', { style: `left:${100 * row.low}%;width:${100 * (row.high - row.low)}%` }) : null,
    element('b', { style: `left:${100 * row.value}%` }),
  );
  return element(
    'td',
    { title: `${interval}; mean over ${row.problems} problems${dropped}` },
    element(
      'span',
      { class: 'value' },
      attemptsLink(filter, percent(row.value)),
      known ? element('small', {}, ` ${Math.round(100 * row.low)}-${Math.round(100 * row.high)}`) : null,
    ),
    bar,
  );
}

function drawDenominators() {
  fill(
    'denominators',
    rowsOf('counts')
      .filter((r) => shown(r.series))
      .map((r) => {
        const parts = [
          [r.missing_provider, 'missing because of the provider', { verdict: 'lost' }],
          [r.harness_errors, 'left out because the harness failed', { verdict: 'harness_error' }],
          [r.pending, 'not judged yet', null],
        ].filter(([count]) => count);
        const said = parts.flatMap(([count, text, filter]) => [
          ', ',
          filter ? attemptsLink({ series: r.series, ...filter }, `${count} ${text}`) : `${count} ${text}`,
        ]);
        return element(
          'p',
          {},
          `${SERIES[r.series].label}: ${r.attempted}${r.planned ? ` of ${r.planned}` : ''} attempts counted`,
          ...said,
          r.turns_needed > 1 ? `; ${r.turns_needed.toFixed(1)} turns to a correct one on average` : '',
        );
      }),
  );
}

function drawDifferences() {
  const metric = byId('difference-metric').value;
  const rows = rowsOf('differences').filter((r) => r.metric === metric && shown(r.series) && shown(seriesOf(r.other_run, r.other)));
  fillTable(
    'differences',
    ['model', element('th', { class: 'text' }, 'minus'), 'difference, points', '95 % interval', 'problems'],
    rows.map((r) => {
      const certain = r.low !== null && (r.low > 0 || r.high < 0);
      const link = (series) => attemptsLink({ series, verdict: metric.startsWith('fast') ? 'fast' : 'correct' }, SERIES[series].label);
      return [
        element('td', { class: 'name' }, link(r.series)),
        element('td', { class: 'text' }, link(seriesOf(r.other_run, r.other))),
        element('td', {}, r.value === null ? '-' : element(certain ? 'b' : 'span', {}, points(r.value))),
        r.low === null ? '-' : `${points(r.low)} to ${points(r.high)}`,
        r.problems,
      ];
    }),
  );
}

function drawHeat() {
  const by = byId('heat-by').value;
  const column = by === 'categories' ? 'category' : 'project';
  const rows = rowsOf(by).filter((r) => r.metric === byId('heat-metric').value && shown(r.series));
  const groups = [...new Set(rows.map((r) => r[column]))].sort();
  const of = new Map(rows.map((r) => [`${r[column]}/${r.series}`, r]));
  const sizes = new Map(groups.map((g) => [g, DATA.problems.filter((p) => p[column] === g).length]));
  const filterBy = (group) => (column === 'category' ? { category: group } : { project: group });
  const fast = byId('heat-metric').value.startsWith('fast');
  fillTable(
    'heat',
    [column, ...shownSeries().map(nameHead)],
    groups.map((group) => [
      element('td', {}, attemptsLink(filterBy(group), group), element('small', {}, ` ${sizes.get(group)}`)),
      ...shownSeries().map((s) =>
        heatCell(of.get(`${group}/${s}`), { ...filterBy(group), series: s, verdict: fast ? 'fast' : 'correct' }),
      ),
    ]),
  );
}

function heatCell(row, filter) {
  if (!row || row.value === null) return element('td', {}, '-');
  return element(
    'td',
    { style: `--v:${row.value}`, class: row.value > 0.6 ? 'strong' : null },
    attemptsLink(filter, percent(row.value)),
  );
}

function drawMatrix() {
  const of = new Map(rowsOf('cells').map((r) => [`${r.problem}/${r.series}`, r]));
  const columns = shownSeries();
  const body = [];
  let category = null;
  const ordered = [...DATA.problems].sort((a, b) => a.category.localeCompare(b.category) || a.name.localeCompare(b.name));
  for (const problem of ordered) {
    if (problem.category !== category) {
      category = problem.category;
      body.push(element('tr', { class: 'group' }, element('th', { colspan: columns.length + 1 }, category)));
    }
    const about = element(
      'details',
      {},
      element('summary', {}, problem.name),
      element('p', { class: 'quiet' }, `${problem.title || 'unknown to this version'} (${problem.project})`),
      problem.deviations.map((d) => element('p', { class: 'quiet' }, `Differs from the original: ${d}.`)),
    );
    body.push(
      element(
        'tr',
        {},
        element('td', { class: 'wrap' }, about),
        columns.map((s) => {
          const cell = of.get(`${problem.name}/${s}`);
          if (!cell || !cell.n) return element('td', {}, '-');
          const share = cell.correct / cell.n;
          const speed = cell.best_speedup === null ? null : element('small', {}, ` ${times(cell.best_speedup)}`);
          return element(
            'td',
            { style: `--v:${share}`, class: `${share > 0.6 ? 'strong' : ''} ${cell.fast1 ? 'fast' : ''}` },
            attemptsLink({ series: s, problem: problem.name }, `${cell.correct}/${cell.n}`),
            speed,
          );
        }),
      ),
    );
  }
  fillTable('matrix', ['problem (framed: some attempt is faster)', ...columns.map(nameHead)], body);
}

function drawVerdicts() {
  const rows = rowsOf('verdicts').filter((r) => shown(r.series));
  const present = verdictsIn(rows);
  const of = new Map(rows.map((r) => [`${r.series}/${r.verdict}`, r]));
  fillTable(
    'verdicts',
    ['model', ...present.map(plain)],
    shownSeries().map((s) => [
      nameCell(s),
      ...present.map((v) =>
        of.has(`${s}/${v}`) ? attemptsLink({ series: s, verdict: v }, of.get(`${s}/${v}`).attempts) : '0',
      ),
    ]),
  );
}

function drawBounds() {
  const rows = rowsOf('references').sort((a, b) => a.utilisation - b.utilisation);
  const several = new Set(rows.map((r) => r.run)).size > 1;
  const best = new Map();
  for (const c of rowsOf('candidates').filter((r) => shown(r.series))) {
    const key = JSON.stringify([c.run, c.problem]);
    if (!best.has(key) || c.candidate_ms < best.get(key).candidate_ms) best.set(key, c);
  }
  const fastest = (r) => best.get(JSON.stringify([r.run, r.problem]));
  const candidate = (c) =>
    c
      ? [
          attemptsLink({ series: c.series, problem: c.problem, verdict: 'correct', stands: null }, milliseconds(c.candidate_ms)),
          percent(c.utilisation),
          element('td', { class: 'text' }, SERIES[c.series].label),
        ]
      : ['-', '-', '-'];
  fillTable(
    'bounds',
    [
      'problem',
      ...(several ? ['run'] : []),
      'ranks',
      'size',
      'binding',
      'interconnect',
      'compute',
      'memory',
      'reference',
      'utilisation',
      'headroom',
      'fastest candidate',
      'its utilisation',
      'its model',
    ],
    rows.map((r) => [
      element('td', {}, attemptsLink({ problem: r.problem }, r.problem)),
      ...(several ? [r.run] : []),
      r.world_size,
      r.size,
      r.binding,
      milliseconds(r.interconnect_ms),
      milliseconds(r.compute_ms),
      milliseconds(r.memory_ms),
      milliseconds(r.reference_ms),
      percent(r.utilisation),
      times(r.headroom),
      ...candidate(fastest(r)),
    ]),
  );
}

function drawGains() {
  const rows = rowsOf('gains').filter((r) => shown(r.series));
  fillTable(
    'gains',
    ['model', 'turns', 'problems solved', 'added', 'cost of the turn', 'cost per added', 'nothing more after'],
    rows.map((r) => [
      nameCell(r.series),
      attemptsLink({ series: r.series, turn: r.turns - 1, stands: null }, r.turns),
      r.solved,
      r.added,
      dollars(r.cost_usd, 0),
      r.cost_per_added === null ? '' : dollars(r.cost_per_added, 0),
      r.plateau === null ? 'never solved any' : r.turns === r.plateau ? `turn ${r.plateau}` : '',
    ]),
  );
}

function drawTransitions() {
  const rows = rowsOf('transitions').filter((r) => shown(r.series));
  const known = verdictsIn(rows);
  const sum = (from, to) =>
    rows.filter((r) => r.verdict === from && (!to || r.following === to)).reduce((total, r) => total + r.count, 0);
  fillTable(
    'transitions',
    ['after, then came', ...known.map(plain)],
    known
      .filter((from) => sum(from))
      .map((from) => [
        plain(from),
        ...known.map((to) => {
          const share = sum(from, to) / sum(from);
          return element(
            'td',
            {
              style: `--v:${share}`,
              class: share > 0.6 ? 'strong' : null,
              title: `${percent(share)} of the turns after ${plain(from)}`,
            },
            element('small', {}, sum(from, to)),
          );
        }),
      ]),
  );
}

function drawRuns() {
  const facts = [
    ['hardware', (c, meta) => meta.hardware?.profile ?? c.prompt?.hardware],
    ['device', (c) => c.device],
    ['ranks', (c) => c.ranks],
    ['size', (c) => [c.size?.preset, ...Object.entries(c.size?.dims ?? {}).map(([k, v]) => `${k}=${v}`)].join(' ')],
    ['dtype', (c) => c.dtype],
    ['collectives allowed', (c) => c.integrity?.collectives],
    ['sandbox at least', (c) => c.sandbox?.require],
    ['attempts', (c) => c.attempts],
    ['turns', (c) => c.agent?.max_turns],
    ['trials', (c) => c.evaluation?.trials],
  ];
  fillTable(
    'run-table',
    ['run', 'created', ...facts.map(([name]) => name)],
    DATA.runs.map((r) => [r.run, r.meta.created ?? '-', ...facts.map(([, get]) => get(r.meta.config ?? {}, r.meta) ?? '-')]),
  );
  fill(
    'run-yaml',
    DATA.runs.map((r) =>
      element(
        'details',
        {},
        element('summary', {}, `All that run.yaml says of ${r.run}`),
        element('pre', { class: 'wrapped' }, JSON.stringify(r.meta, null, 1)),
      ),
    ),
  );
}
