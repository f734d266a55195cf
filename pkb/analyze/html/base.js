// The data of the page and the small helpers that everything uses. Text from outside is only ever set as text.

const DATA = JSON.parse(document.getElementById('data').textContent);
const COLORS = ['#4477aa', '#ee6677', '#228833', '#ccbb44', '#66ccee', '#aa3377', '#999999', '#ee8866', '#44bb99', '#aaaa00'];
const DASHES = ['solid', 'dash', 'dot', 'dashdot'];
const VERDICT_COLORS = {
  correct: '#228833',
  mismatch: '#aa3377',
  wrong_structure: '#cc78a8',
  nondeterministic: '#ddaacc',
  deadlock: '#cc3311',
  runtime_error: '#ee6677',
  out_of_memory: '#f4a3ac',
  compile_error: '#ee8866',
  load_error: '#f2bb9d',
  no_code: '#8c96a3',
  bad_interface: '#b3bac4',
  forbidden: '#ccbb44',
  tampering: '#222222',
  harness_error: '#66ccee',
};
/** The known verdicts that occur in these rows, in the order of their colours, then any that this page does not know. */
function verdictsIn(rows) {
  const there = new Set(rows.flatMap((r) => [r.verdict, r.following]).filter((v) => v));
  const known = Object.keys(VERDICT_COLORS).filter((v) => there.delete(v));
  return [...known, ...[...there].sort()];
}
const FRAMES = DATA.frames;
const SERIES = DATA.series;
const SEVERAL_TURNS = FRAMES.turns.turns.length > 0;
const hidden = new Set(); // numbers of series that are switched off

/** Rows of a frame as objects, each with the number of its series. */
function rowsOf(name) {
  const frame = FRAMES[name];
  const columns = Object.keys(frame);
  const length = columns.length ? frame[columns[0]].length : 0;
  const rows = [];
  for (let i = 0; i < length; i++) {
    const row = {};
    for (const column of columns) row[column] = frame[column][i];
    if ('model' in row) row.series = seriesOf(row.run, row.model);
    rows.push(row);
  }
  return rows;
}

const seriesNumbers = new Map(SERIES.map((s, i) => [JSON.stringify([s.run, s.model]), i]));
function seriesOf(run, model) {
  return seriesNumbers.get(JSON.stringify([run, model]));
}
const shown = (series) => series !== undefined && !hidden.has(series);
const shownSeries = () => SERIES.map((_, i) => i).filter(shown);
const colorOf = (series) => COLORS[series % COLORS.length];
const dashOf = (series) => DASHES[Math.floor(series / COLORS.length) % DASHES.length];

/** element('td', {class: 'text'}, child, ...): children are elements or text. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (name === 'style') made.style.cssText = value;
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? '' : value);
  }
  made.append(
    ...children
      .flat()
      .filter((c) => c !== null && c !== undefined)
      .map((c) => (c instanceof Node ? c : String(c))),
  );
  return made;
}

const byId = (id) => document.getElementById(id);
const fill = (id, ...children) => byId(id).replaceChildren(...children.flat());

function fillSelect(select, options, chosen) {
  select.replaceChildren(...options.map(([value, label]) => element('option', { value, selected: value === chosen }, label)));
}

/** The address of the attempts behind a number: of each attempt the turn that stands for it, unless the filter says stands: null. */
function attemptsHash(filter) {
  const query = new URLSearchParams();
  const whole = SEVERAL_TURNS ? { stands: 1, ...filter } : { ...filter, stands: null };
  for (const [name, value] of Object.entries(whole)) if (value !== undefined && value !== null) query.set(name, value);
  return `attempts?${query}`;
}
const attemptsLink = (filter, ...content) => element('a', { href: `#${attemptsHash(filter)}` }, ...content);
/** A cell with the name of a model, which may be long. */
const nameCell = (series) => element('td', { class: 'name' }, SERIES[series].label);
const nameHead = (series) => element('th', { scope: 'col', class: 'wide' }, SERIES[series].label);

const percent = (x) => (x === null || x === undefined ? '-' : `${(100 * x).toFixed(x > 0 && x < 0.1 ? 1 : 0)} %`);
const points = (x) => `${x > 0 ? '+' : ''}${(100 * x).toFixed(1)}`;
const times = (x) => (x === null || x === undefined ? '-' : `${x.toPrecision(3)}x`);
const milliseconds = (x) => (x === null || x === undefined ? '-' : `${x.toPrecision(3)} ms`);
const plain = (text) => text.replaceAll('_', ' ');
function dollars(x, unknown) {
  if (x === null || x === undefined) return unknown ? 'unknown' : '-';
  return `$${x.toFixed(x && Math.abs(x) < 0.1 ? 4 : 2)}${unknown ? '+' : ''}`;
}

/** A table with a head and rows of cells; cells are elements or text, the first column is text. */
function fillTable(id, heads, rows) {
  const cell = (content) => (content instanceof HTMLTableCellElement ? content : element('td', {}, content));
  fill(
    id,
    element(
      'thead',
      {},
      element(
        'tr',
        {},
        heads.map((h) => (h instanceof Node ? h : element('th', { scope: 'col' }, h))),
      ),
    ),
    element(
      'tbody',
      {},
      rows.map((r) => (r instanceof Node ? r : element('tr', {}, r.map(cell)))),
    ),
  );
}

/** The JSON in a packed script element, unpacked: gzip in base64. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

/** Short names for heads and menus: best@3 is "best of 3", the stricter count by the interval's lower end "fast1 low@3". */
const metricName = (metric) =>
  metric.replace('fast1_low', 'fast1 low').replace('fastbest@', 'fast best of ').replace('best@', 'best of ');
const METRIC_HELP = {
  pass: 'chance that one of k attempts is correct (unbiased estimate)',
  fast1: 'chance that one of k attempts is correct and faster than the reference',
  fast1_low: "as fast1, but the lower end of the speedup's interval must exceed 1",
  best: 'share of problems that one of the first k attempts solves',
};
