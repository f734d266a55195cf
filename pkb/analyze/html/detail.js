// One attempt in full: its texts are unpacked, or loaded from the folder beside the page, when it is opened.

const pieces = new Map(); // number of a packed piece -> promise of its documents
const waiting = new Map(); // asset files that are being loaded: number -> resolve
window.PKB_TEXTS = (number, text) => waiting.get(number)?.(text);

function documentsOf(number) {
  if (!pieces.has(number)) {
    const inside = byId(`texts-${number}`);
    const text = inside
      ? Promise.resolve(inside.textContent)
      : new Promise((resolve, reject) => {
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
  let absent =
    'The texts of this attempt are not in this file: it keeps those of the fastest and of some of each verdict. The Parquet has them, and a report made with --assets.';
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
  const head = element(
    'header',
    {},
    element(
      'h2',
      {},
      `${problemName(a)}, ${SERIES[a.series]?.label ?? ''}, attempt ${a.attempt}${a.turn ? `, turn ${a.turn}` : ''}`,
    ),
    element(
      'span',
      { class: 'controls' },
      neighbour(a.row - 1, 'previous'),
      neighbour(a.row + 1, 'next'),
      element('button', { type: 'button', onclick: () => byId('detail').close() }, 'Close'),
    ),
  );
  const t = texts ?? {};
  const run = SERIES[a.series]?.run;
  const roof = rowsOf('references').find((r) => r.run === run && r.problem === problemName(a));
  const facts = [
    ['verdict', plain(a.verdict) + (t.measured ? ` (by its values alone: ${plain(t.measured)})` : '')],
    ['ended at', t.stage],
    ['what was wrong', t.detail],
    ['speedup', a.speedup === null ? null : speedText(a)],
    ['reference', a.reference_ms === null ? null : milliseconds(a.reference_ms)],
    ['candidate', a.candidate_ms === null ? null : milliseconds(a.candidate_ms)],
    ['physical bound', roof && `${milliseconds(roof.bound_ms)}, set by ${roof.binding}; the reference uses ${percent(roof.utilisation)} of it`],
    ['utilisation', roof && a.candidate_ms ? percent(roof.bound_ms / a.candidate_ms) : null],
    ['largest error', a.max_error === null || a.max_error === undefined ? null : `${+a.max_error.toPrecision(3)} times the tolerance`],
    ['trials', t.trials],
    [
      'measured on',
      t.device &&
        `${t.world_size} ranks, ${t.device}, ${t.size}, ${t.dtype}; node ${t.node || '-'}; sandbox ${t.sandbox || '-'}; policy ${t.policy || '-'}; timing protocol ${t.protocol ?? 0}`,
    ],
    ['seconds by stage', t.seconds_by_stage && listing(t.seconds_by_stage)],
    ['collective bytes per rank and call', t.collective_bytes],
    ['mechanism', t.extra?.mechanism && mechanismText(t.extra.mechanism)],
    ['prompt hash', t.prompt_hash],
    [
      'answer',
      t.status &&
        `${t.status}${t.finish_reason ? `, finished: ${t.finish_reason}` : ''}${t.extraction ? `; ${t.extraction}` : ''}`,
    ],
    ['cost', t.cost_usd === undefined ? 'unknown' : dollars(t.cost_usd, 0)],
    ['tokens', t.usage && listing(t.usage)],
    ['provider error', t.error],
    ['seconds of generation', t.seconds && t.seconds.toPrecision(3)],
    ['log', t.log],
  ].filter(([, value]) => value !== null && value !== undefined && value !== '');
  const list = element(
    'dl',
    {},
    facts.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]),
  );
  if (!texts) return [head, list, element('p', { class: 'note' }, absent)];
  const { mechanism, ...evidence } = typeof t.extra === 'object' ? t.extra : { text: t.extra };
  const seen = (mechanism?.evidence ?? []).map((e) => `${e.mechanism}, ${e.where}: ${e.text}`).join('\n');
  return [
    head,
    list,
    part('Source', t.source && code(t.source), true),
    part('Build log', t.build_log && raw(t.build_log), a.verdict === 'compile_error'),
    part('Evidence for the mechanism', seen && raw(seen)),
    part(
      'Evidence',
      Object.values(evidence).some((v) => v !== undefined) && raw(evidenceText(evidence)),
      a.verdict !== 'correct',
    ),
    part('Answer', t.answer && raw(t.answer)),
    part('Reasoning', t.reasoning && raw(t.reasoning)),
    part('Prompt', PROMPTS[t.prompt_hash] && raw(PROMPTS[t.prompt_hash])),
    part('Request as sent', t.sent && raw(evidenceText(t.sent))),
  ].filter(Boolean);
}

const mechanismText = ({ primary, used }) =>
  primary + ((used ?? []).length > 1 ? `; also ${used.filter((m) => m !== primary).join(', ')}` : '');
const listing = (object) =>
  typeof object === 'string'
    ? object
    : Object.entries(object)
        .filter(([, v]) => v !== undefined)
        .map(([k, v]) => `${plain(k)} ${typeof v === 'number' ? +v.toPrecision(4) : Array.isArray(v) ? v.join(', ') : v}`)
        .join('; ');
const evidenceText = (object) =>
  typeof object === 'string'
    ? object
    : Object.entries(object)
        .map(([k, v]) => (typeof v === 'string' ? `${k}:\n${v}` : `${k}: ${JSON.stringify(v)}`))
        .join('\n');
const raw = (text) => element('pre', { class: 'wrapped' }, text);
const code = (text) => element('pre', {}, ...highlighted(text));
function part(title, content, open = false) {
  return content ? element('details', { open }, element('summary', {}, title), content) : null;
}
