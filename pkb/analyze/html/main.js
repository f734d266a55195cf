// Start: fill the controls, draw everything, and follow the address.

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId('theme').textContent = theme === 'dark' ? 'Light' : 'Dark';
}

function drawAll() {
  for (const one of [
    drawBoard,
    drawDenominators,
    drawDifferences,
    drawHeat,
    drawMatrix,
    drawVerdicts,
    drawBounds,
    drawGains,
    drawTransitions,
    drawRuns,
  ])
    one();
  drawCharts();
  drawAttempts();
}

function prepareChips() {
  fill(
    'models',
    SERIES.map((s, i) =>
      element(
        'button',
        {
          type: 'button',
          'aria-pressed': 'true',
          onclick: (event) => {
            if (hidden.has(i)) hidden.delete(i);
            else hidden.add(i);
            event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(i)));
            drawAll();
          },
        },
        element('span', { class: 'swatch', style: `background:${colorOf(i)}` }),
        s.label,
      ),
    ),
  );
}

function prepareControls() {
  const metrics = ['pass', 'fast1', 'fast1_low', 'best', 'fastbest']
    .flatMap((m) => DATA.ks.map((k) => `${m}@${k}`))
    .map((m) => [m, metricName(m)]);
  const top = `fast1@${DATA.ks[1]}`;
  fillSelect(byId('heat-metric'), metrics, top);
  fillSelect(byId('cost-metric'), metrics, top);
  fillSelect(
    byId('difference-metric'),
    [...new Set(rowsOf('differences').map((r) => r.metric))].map((m) => [m, metricName(m)]),
    top,
  );
  fillSelect(
    byId('curve-k'),
    DATA.ks.map((k) => [String(k), String(k)]),
    String(DATA.ks[1]),
  );
  const categories = [...new Set(DATA.problems.map((p) => p.category))].sort();
  fillSelect(byId('board-category'), [['', 'all'], ...categories.map((c) => [c, c])]);
  for (const [id, one] of [
    ['board-category', drawBoard],
    ['heat-metric', drawHeat],
    ['heat-by', drawHeat],
    ['difference-metric', drawDifferences],
    ['curve-k', drawCurves],
    ['cost-metric', drawCost],
  ])
    byId(id).addEventListener('change', one);
  byId('theme').addEventListener('click', () => {
    setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
    drawCharts();
  });
  byId('detail').addEventListener('close', () => {
    if (location.hash.startsWith('#attempt=')) history.replaceState(null, '', '#attempts');
  });
  if (!rowsOf('turns').length) for (const part of document.querySelectorAll('[data-needs="turns"]')) part.hidden = true;
}

function follow() {
  const hash = decodeURIComponent(location.hash.slice(1));
  if (hash.startsWith('attempt=')) {
    showAttempt(Number(hash.slice(8)));
    return;
  }
  if (byId('detail').open) byId('detail').close();
  if (location.hash.startsWith('#attempts?')) {
    applyFilter(location.hash.slice('#attempts?'.length));
    byId('attempts').scrollIntoView();
  }
}

/** Paper is light and as narrow as a page; the charts are drawn anew for it. */
function preparePrint() {
  const root = document.documentElement.dataset;
  let before = root.theme;
  window.addEventListener('beforeprint', () => {
    before = root.theme;
    root.printing = 'true';
    setTheme('light');
    drawCharts();
  });
  window.addEventListener('afterprint', () => {
    delete root.printing;
    setTheme(before);
    drawCharts();
  });
}

async function start() {
  setTheme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  fill(
    'subtitle',
    `${DATA.runs.map((r) => r.run).join(', ')}: ${SERIES.length} models, ${DATA.problems.length} problems, ${DATA.total.toLocaleString('en')} judged answers`,
  );
  fill(
    'notes',
    DATA.notes.map((n) => element('p', { class: 'note' }, n)),
  );
  const [index, prompts] = await Promise.all(['index', 'prompts'].map((id) => unpack(byId(id).textContent)));
  setAttempts(index, prompts);
  prepareChips();
  prepareControls();
  prepareFilters();
  preparePrint();
  drawAll();
  window.addEventListener('hashchange', follow);
  follow();
  document.documentElement.dataset.ready = 'true';
}

start();
