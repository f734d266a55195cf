// The list of attempts and its filters.

let INDEX = { series: [] }; // columns of the listed attempts, unpacked when the page opens
let PROMPTS = {};
let LIST = []; // the same as rows
const PAGE = 25;
const LOST = ['provider_error', 'filtered'];
let filter = {};
let page = 0;
let order = { column: 'row', down: false };

function setAttempts(index, prompts) {
  INDEX = index;
  PROMPTS = prompts;
  const columns = Object.keys(index);
  LIST = index.series.map((_, row) => {
    const made = { row };
    for (const column of columns) made[column] = index[column][row];
    return made;
  });
}

const attemptRows = () => LIST;
const problemOf = (a) => DATA.problems[a.problem] ?? { name: 'unknown', category: 'unknown', project: 'unknown' };
const problemName = (a) => problemOf(a).name;
const isRight = (a) => a.verdict === 'correct' && !a.shared_device;
const isFast = (a, p = 1) => isRight(a) && a.speedup !== null && a.speedup > p;

function matches(a) {
  const f = filter;
  if (f.series !== undefined && a.series !== Number(f.series)) return false;
  if (f.series === undefined && !shown(a.series) && a.series !== null) return false;
  if (f.category && problemOf(a).category !== f.category) return false;
  if (f.project && problemOf(a).project !== f.project) return false;
  if (f.problem && problemName(a) !== f.problem) return false;
  if (f.stands && !a.stands) return false;
  if (f.turn !== undefined && a.turn !== Number(f.turn)) return false;
  if (f.mechanism && a.mechanism !== f.mechanism) return false;
  if (f.faster !== undefined && !isFast(a, Number(f.faster))) return false;
  if (f.verdict === 'fast') return isFast(a);
  if (f.verdict === 'lost') return LOST.includes(a.verdict);
  if (f.verdict === 'wrong') return a.verdict !== 'correct' && a.verdict !== 'harness_error' && !LOST.includes(a.verdict);
  return !f.verdict || a.verdict === f.verdict;
}

function prepareFilters() {
  const form = byId('filters');
  const verdicts = [...new Set(LIST.map((a) => a.verdict))].sort();
  const mechanisms = [...new Set(LIST.map((a) => a.mechanism).filter((m) => m))].sort();
  const all = ['', 'all'];
  fillSelect(form.elements.series, [all, ...SERIES.map((s, i) => [String(i), s.label])]);
  fillSelect(form.elements.category, [all, ...[...new Set(DATA.problems.map((p) => p.category))].sort().map((c) => [c, c])]);
  fillSelect(form.elements.problem, [all, ...DATA.problems.map((p) => [p.name, p.name])]);
  fillSelect(form.elements.verdict, [
    all,
    ['fast', 'correct and faster'],
    ['wrong', 'not correct'],
    ['lost', 'lost by the provider'],
    ...verdicts.map((v) => [v, plain(v)]),
  ]);
  fillSelect(form.elements.mechanism, [all, ...mechanisms.map((m) => [m, m])]);
  form.addEventListener('change', () => {
    const chosen = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ''));
    location.hash = attemptsHash({ stands: null, ...chosen });
  });
  form.addEventListener('reset', () => {
    location.hash = 'attempts?';
  });
  const listed =
    LIST.length < DATA.total
      ? `This report lists ${LIST.length.toLocaleString('en')} of ${DATA.total.toLocaleString('en')}: per model and problem the fastest three and two or three of every verdict. The Parquet has all.`
      : '';
  fill('attempt-note', listed);
}

function applyFilter(query) {
  filter = Object.fromEntries(new URLSearchParams(query));
  page = 0;
  const form = byId('filters');
  for (const name of ['series', 'category', 'problem', 'verdict', 'mechanism', 'stands']) form.elements[name].value = filter[name] ?? '';
  drawAttempts();
}

function drawAttempts() {
  const found = LIST.filter(matches);
  if (order.column !== 'row' || order.down) {
    const value = (a) => (order.column === 'problem' ? a.problem : a[order.column]);
    found.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null || x === undefined || y === undefined) return (x ?? null === null) - (y ?? null === null);
      return (x < y ? -1 : x > y ? 1 : 0) * (order.down ? -1 : 1);
    });
  }
  const turns = LIST.some((a) => a.turn > 0);
  const head = (column, label, text) => {
    const sorted = order.column === column ? (order.down ? 'descending' : 'ascending') : null;
    const turn = () => {
      order = { column, down: order.column === column ? !order.down : false };
      drawAttempts();
    };
    return element(
      'th',
      { scope: 'col', class: text ? 'text' : null, 'aria-sort': sorted },
      element('button', { type: 'button', onclick: turn }, label),
    );
  };
  const heads = [
    head('problem', 'problem', true),
    head('series', 'model', true),
    head('attempt', 'attempt'),
    ...(turns ? [head('turn', 'turn')] : []),
    head('verdict', 'verdict', true),
    head('speedup', 'speedup'),
    head('reference_ms', 'reference'),
    head('candidate_ms', 'candidate'),
    head('mechanism', 'mechanism', true),
  ];
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  page = Math.min(page, pages - 1);
  fillTable(
    'attempt-list',
    heads,
    found
      .slice(page * PAGE, (page + 1) * PAGE)
      .map((a) => [
        element('td', {}, element('a', { href: `#attempt=${a.row}` }, problemName(a))),
        element('td', { class: 'text' }, SERIES[a.series]?.label ?? '-'),
        a.attempt,
        ...(turns ? [a.turn] : []),
        element(
          'td',
          { class: 'text' },
          element('span', { class: 'swatch', style: `background:${VERDICT_COLORS[a.verdict] ?? '#999'}` }),
          ` ${plain(a.verdict)}`,
        ),
        speedText(a),
        milliseconds(a.reference_ms),
        milliseconds(a.candidate_ms),
        element('td', { class: 'text' }, a.mechanism ?? '-'),
      ]),
  );
  const turn = filter.turn === undefined ? null : Number(filter.turn) + 1;
  const said = Object.entries({ project: filter.project, turn, 'faster than': filter.faster && `${filter.faster}x` })
    .filter(([, v]) => v)
    .map(([k, v]) => `, ${k} ${v}`);
  const what = turns && !filter.stands ? 'turns of attempts' : 'attempts';
  fill('attempt-count', `${found.length.toLocaleString('en')} ${what}${said.join('')}`);
  const go = (to, label) =>
    element(
      'button',
      {
        type: 'button',
        disabled: to < 0 || to >= pages,
        onclick: () => {
          page = to;
          drawAttempts();
        },
      },
      label,
    );
  fill(
    'pages',
    pages > 1
      ? [go(page - 1, 'Previous'), element('span', { class: 'quiet' }, `page ${page + 1} of ${pages}`), go(page + 1, 'Next')]
      : [],
  );
}

function speedText(a) {
  if (a.speedup === null || a.speedup === undefined) return '-';
  const shared = a.shared_device ? ' shared device' : '';
  const known = a.speedup_low !== null && a.speedup_high !== null;
  return times(a.speedup) + (known ? ` [${a.speedup_low.toPrecision(3)}, ${a.speedup_high.toPrecision(3)}]` : '') + shared;
}
