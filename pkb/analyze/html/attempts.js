// The list of attempts, its filters, and one attempt in full.

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
  fillSelect(form.elements.verdict, [all, ['fast', 'correct and faster'], ['wrong', 'not correct'], ['lost', 'lost by the provider'], ...verdicts.map((v) => [v, plain(v)])]);
  fillSelect(form.elements.mechanism, [all, ...mechanisms.map((m) => [m, m])]);
  form.addEventListener('change', () => {
    const chosen = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ''));
    location.hash = attemptsHash(chosen);
  });
  form.addEventListener('reset', () => { location.hash = 'attempts?'; });
  const listed = LIST.length < DATA.total ? `This report lists ${LIST.length.toLocaleString('en')} of ${DATA.total.toLocaleString('en')}: per model and problem the fastest three and two or three of every verdict. The Parquet has all.` : '';
  fill('attempt-note', listed);
}

function applyFilter(query) {
  filter = Object.fromEntries(new URLSearchParams(query));
  page = 0;
  const form = byId('filters');
  for (const name of ['series', 'category', 'problem', 'verdict', 'mechanism']) form.elements[name].value = filter[name] ?? '';
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
    const turn = () => { order = { column, down: order.column === column ? !order.down : false }; drawAttempts(); };
    return element('th', { scope: 'col', class: text ? 'text' : null, 'aria-sort': sorted }, element('button', { type: 'button', onclick: turn }, label));
  };
  const heads = [
    head('problem', 'problem', true), head('series', 'model', true), head('attempt', 'attempt'), ...(turns ? [head('turn', 'turn')] : []), head('verdict', 'verdict', true),
    head('speedup', 'speedup'), head('reference_ms', 'reference'), head('candidate_ms', 'candidate'), head('mechanism', 'mechanism', true),
  ];
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  page = Math.min(page, pages - 1);
  fillTable('attempt-list', heads, found.slice(page * PAGE, (page + 1) * PAGE).map((a) => [
    element('td', {}, element('a', { href: `#attempt=${a.row}` }, problemName(a))),
    element('td', { class: 'text' }, SERIES[a.series]?.label ?? '-'), a.attempt, ...(turns ? [a.turn] : []),
    element('td', { class: 'text' }, element('span', { class: 'swatch', style: `background:${VERDICT_COLORS[a.verdict] ?? '#999'}` }), ` ${plain(a.verdict)}`),
    speedText(a), milliseconds(a.reference_ms), milliseconds(a.candidate_ms), element('td', { class: 'text' }, a.mechanism ?? '-'),
  ]));
  const said = Object.entries({ project: filter.project, 'faster than': filter.faster && `${filter.faster}x` }).filter(([, v]) => v).map(([k, v]) => `, ${k} ${v}`);
  fill('attempt-count', `${found.length.toLocaleString('en')} attempts${said.join('')}`);
  const go = (to, label) => element('button', { type: 'button', disabled: to < 0 || to >= pages, onclick: () => { page = to; drawAttempts(); } }, label);
  fill('pages', pages > 1 ? [go(page - 1, 'Previous'), element('span', { class: 'quiet' }, `page ${page + 1} of ${pages}`), go(page + 1, 'Next')] : []);
}

function speedText(a) {
  if (a.speedup === null || a.speedup === undefined) return '-';
  const shared = a.shared_device ? ' shared device' : '';
  const known = a.speedup_low !== null && a.speedup_high !== null;
  return times(a.speedup) + (known ? ` [${a.speedup_low.toPrecision(3)}, ${a.speedup_high.toPrecision(3)}]` : '') + shared;
}

// -- one attempt ------------------------------------------------------------------------------------------------------

const pieces = new Map(); // number of a packed piece -> promise of its documents
const waiting = new Map(); // asset files that are being loaded: number -> resolve
window.PKB_TEXTS = (number, text) => waiting.get(number)?.(text);

function documentsOf(number) {
  if (!pieces.has(number)) {
    const inside = byId(`texts-${number}`);
    const text = inside ? Promise.resolve(inside.textContent) : new Promise((resolve, reject) => {
      waiting.set(number, resolve);
      const script = element('script', { src: `${DATA.assets}/attempts-${number}.js` });
      script.addEventListener('error', () => reject(new Error('missing')));
      document.head.append(script);
    });
    pieces.set(number, text.then(unpack));
  }
  return pieces.get(number);
}

async function showAttempt(row) {
  const a = LIST[row];
  const dialog = byId('detail');
  if (!a) return;
  let texts = null;
  let absent = 'The texts of this attempt are not in this file: it keeps those of the fastest and of some of each verdict. The Parquet has them, and a report made with --assets.';
  if (a.piece !== null) {
    try {
      texts = (await documentsOf(a.piece))[row] ?? {};
    } catch {
      absent = `The texts of this attempt are in the folder ${DATA.assets}, which is not beside this file.`;
    }
  }
  dialog.replaceChildren(...attemptView(a, texts, absent));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function attemptView(a, texts, absent) {
  const neighbour = (row, label) => (LIST[row] ? element('a', { href: `#attempt=${row}` }, label) : null);
  const head = element('header', {},
    element('h2', {}, `${problemName(a)}, ${SERIES[a.series]?.label ?? ''}, attempt ${a.attempt}${a.turn ? `, turn ${a.turn}` : ''}`),
    element('span', { class: 'controls' }, neighbour(a.row - 1, 'previous'), neighbour(a.row + 1, 'next'), element('button', { type: 'button', onclick: () => byId('detail').close() }, 'Close')));
  const t = texts ?? {};
  const facts = [
    ['verdict', plain(a.verdict) + (t.measured ? ` (by its values alone: ${plain(t.measured)})` : '')], ['ended at', t.stage], ['what was wrong', t.detail],
    ['speedup', a.speedup === null ? null : speedText(a)], ['reference', a.reference_ms === null ? null : milliseconds(a.reference_ms)],
    ['candidate', a.candidate_ms === null ? null : milliseconds(a.candidate_ms)], ['largest error', a.max_error === null || a.max_error === undefined ? null : `${a.max_error} of the tolerance`],
    ['trials', t.trials], ['measured on', t.device && `${t.world_size} ranks, ${t.device}, ${t.size}, ${t.dtype}; node ${t.node || '-'}; sandbox ${t.sandbox || '-'}; policy ${t.policy || '-'}; timing protocol ${t.protocol ?? 0}`],
    ['seconds by stage', t.seconds_by_stage && listing(t.seconds_by_stage)], ['collective bytes per rank and call', t.collective_bytes],
    ['mechanism', t.extra?.mechanism && listing({ ...t.extra.mechanism, evidence: undefined, version: undefined })],
    ['prompt', t.prompt_hash], ['answer', t.status && `${t.status}${t.finish_reason ? `, finished: ${t.finish_reason}` : ''}${t.extraction ? `; ${t.extraction}` : ''}`],
    ['cost', t.cost_usd === undefined ? 'unknown' : dollars(t.cost_usd, 0)], ['tokens', t.usage && listing(t.usage)], ['provider error', t.error], ['seconds of generation', t.seconds && t.seconds.toPrecision(3)], ['log', t.log],
  ].filter(([, value]) => value !== null && value !== undefined && value !== '');
  const list = element('dl', {}, facts.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]));
  if (!texts) return [head, list, element('p', { class: 'note' }, absent)];
  const { mechanism, ...evidence } = typeof t.extra === 'object' ? t.extra : { text: t.extra };
  const seen = (mechanism?.evidence ?? []).map((e) => `${e.mechanism}, ${e.where}: ${e.text}`).join('\n');
  return [
    head, list, part('Source', t.source && code(t.source), true), part('Build log', t.build_log && raw(t.build_log), a.verdict === 'compile_error'),
    part('Evidence for the mechanism', seen && raw(seen)), part('Evidence', Object.values(evidence).some((v) => v !== undefined) && raw(evidenceText(evidence)), a.verdict !== 'correct'),
    part('Answer', t.answer && raw(t.answer)), part('Reasoning', t.reasoning && raw(t.reasoning)), part('Prompt', PROMPTS[t.prompt_hash] && raw(PROMPTS[t.prompt_hash])), part('Request as sent', t.sent && raw(evidenceText(t.sent))),
  ].filter(Boolean);
}

const listing = (object) => (typeof object === 'string' ? object : Object.entries(object).filter(([, v]) => v !== undefined).map(([k, v]) => `${plain(k)} ${typeof v === 'number' ? +v.toPrecision(4) : Array.isArray(v) ? v.join(', ') : v}`).join('; '));
const evidenceText = (object) => (typeof object === 'string' ? object : Object.entries(object).map(([k, v]) => (typeof v === 'string' ? `${k}:\n${v}` : `${k}: ${JSON.stringify(v)}`)).join('\n'));
const raw = (text) => element('pre', { class: 'wrapped' }, text);
const code = (text) => element('pre', {}, ...highlighted(text));
function part(title, content, open = false) {
  return content ? element('details', { open }, element('summary', {}, title), content) : null;
}
