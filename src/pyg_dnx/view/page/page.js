// Wires the page: what is known (the JSON in the page), the graph, the tables and the controls.
const data = JSON.parse(document.getElementById('data').textContent);
const find = (selector) => document.querySelector(selector);
const { id, label, score, rank, hops, type } = data.nodes, count = id.length;
const byRank = [...id.keys()].sort((a, b) => rank[a] - rank[b]);
const sizes = byRank.map((i) => Math.abs(score[i])), total = sizes.reduce((sum, value) => sum + value, 0);
const hasLabels = data.hasLabels, tooltip = find('#tooltip');

const graph = createGraph(find('#canvas'), data, { onHover: describe, onPin: select });
const hasHops = hops.some((hop) => hop !== null);
const columns = [
  { name: 'Rank', kind: 'number' },
  { name: 'Node', kind: 'number', selects: !hasLabels },
  ...(hasLabels ? [{ name: 'Label', kind: 'text', selects: true }] : []),
  ...(type ? [{ name: 'Type', kind: 'text' }] : []),
  ...(hasHops ? [{ name: 'Hops', kind: 'number' }] : []),
  { name: data.scoreName, kind: 'score', signed: data.isSigned },
];
const rows = id.map((node, i) => [
  rank[i], node, ...(hasLabels ? [label[i]] : []), ...(type ? [data.types[type[i]]] : []), ...(hasHops ? [hops[i]] : []), score[i],
]);
const nodeTable = createTable(find('#nodes'), columns, rows, graph.limit, (i) => graph.pin(graph.isPinned(i) ? -1 : i));

// How many are shown
let top_k = data.initial, pinnedNode = -1;
const slider = find('#slider'), box = find('#top'), search = find('#search');
slider.max = box.max = count;
find('#total').textContent = `${count.toLocaleString('en')} ${count === 1 ? 'node' : 'nodes'}`;
slider.addEventListener('input', () => showTop(Number(slider.value)));
box.addEventListener('input', () => { if (box.validity.valid && box.value) showTop(Number(box.value)); });
box.addEventListener('change', () => showTop(Number(box.value)));
search.addEventListener('input', update);

function showTop(k) {
  top_k = Math.min(count, Math.max(1, Math.round(k) || 1));
  slider.value = top_k;
  if (box !== document.activeElement || !box.validity.valid) box.value = top_k;
  update();
}

function update() {
  const shown = byRank.slice(0, top_k);
  if (data.explained === 1 && rank[0] > top_k) shown.push(0); // the explained node stays
  graph.show(shown);
  const among = new Set(pinnedNode < 0 ? shown : [...shown, pinnedNode]), query = search.value.trim().toLowerCase();
  const matches = (i) => String(id[i]) === query || label[i].toLowerCase().includes(query);
  nodeTable.filter((i) => (query ? matches(i) : among.has(i)));
  const share = sizes.slice(0, top_k).reduce((sum, value) => sum + value, 0) / (total || 1);
  const percent = (100 * share).toFixed(share > 0.995 && share < 1 ? 1 : 0), sum = data.isSigned ? '|scores|' : 'scores';
  find('#share').textContent = `They hold ${percent}% of the sum of ${sum} on this page.`;
}

function select(i) {
  pinnedNode = i;
  update();
  nodeTable.select(i);
}

// What is under the mouse
function describe(i, at) {
  tooltip.hidden = i < 0;
  if (i < 0) return;
  const away = hops[i] === null ? null : hops[i] === 0 ? 'explained' : `${hops[i]} ${hops[i] === 1 ? 'hop' : 'hops'} away`;
  tooltip.replaceChildren(
    element('b', '', hasLabels ? label[i] : `${type ? data.types[type[i]] : 'Node'} ${id[i]}`),
    element('div', '', [hasLabels ? `${type ? data.types[type[i]] : 'node'} ${id[i]}` : null, away].filter(Boolean).join(', ')),
    element('div', 'score', `${data.scoreName} ${formatScore(score[i], data.isSigned)}, rank ${rank[i]} of ${count}`),
  );
  const right = at.x + at.gap + 10, low = at.y - tooltip.offsetHeight / 2;
  const x = right + tooltip.offsetWidth > at.width ? at.x - at.gap - 10 - tooltip.offsetWidth : right;
  const inside = (value, most) => Math.round(Math.max(0, Math.min(value, most)));
  const place = [inside(x, at.width - tooltip.offsetWidth), inside(low, at.height - tooltip.offsetHeight)];
  tooltip.style.transform = `translate(${place[0]}px, ${place[1]}px)`;
}

// Light and dark
const system = window.matchMedia('(prefers-color-scheme: dark)'), root = document.documentElement;
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
function setTheme(name) {
  root.dataset.theme = name;
  find('#theme').textContent = name === 'dark' ? 'Light' : 'Dark';
  find('#theme').setAttribute('aria-pressed', name === 'dark');
  const computed = getComputedStyle(root), read = (key) => computed.getPropertyValue(`--${key}`).trim();
  const [neutral, positive, negative] = ['neutral', 'positive', 'negative'].map((key) => rgb(read(key)));
  const edge = rgb(read('edge'));
  const colourOf = (t, middle) => { // for t from -1 to 1
    const end = t < 0 ? negative : positive, start = middle === 'edge' ? edge : neutral;
    return `rgb(${start.map((from, c) => Math.round(from + Math.abs(t) * (end[c] - from))).join(' ')})`;
  };
  graph.paint(colourOf, (keys) => Object.fromEntries(keys.map((key) => [key, read(key)])));
  drawLegend(colourOf);
}
find('#theme').addEventListener('click', () => setTheme(root.dataset.theme === 'dark' ? 'light' : 'dark'));
system.addEventListener('change', () => setTheme(system.matches ? 'dark' : 'light'));
let screenTheme = 'light';
window.addEventListener('beforeprint', () => { screenTheme = root.dataset.theme; setTheme('light'); });
window.addEventListener('afterprint', () => setTheme(screenTheme));

function drawLegend(colourOf) {
  const ticks = data.isSigned ? [-1, -0.5, 0, 0.5, 1] : [0, 0.5, 1]; // colours follow the root, so that small scores show
  const scale = element('div', 'scale'), strip = element('div', 'bar'), numbers = element('div', 'ticks');
  strip.style.background = `linear-gradient(to right, ${ticks.map((t) => colourOf(t)).join(', ')})`;
  ticks.forEach((t) => numbers.append(element('span', '', formatScore(t * Math.abs(t) * graph.limit, data.isSigned))));
  scale.append(element('div', '', data.scoreHint), strip, numbers);
  const legend = find('#legend');
  legend.replaceChildren(scale);
  if (data.explained > 0) legend.append(item(data.links.length > 0 ? 'ends of the link' : 'explained', '<circle cx="12" cy="9" r="7"/>', 24));
  if (type) data.types.forEach((name, t) => legend.append(shape(name, t)));
  if (data.edges.score) {
    const strip = (sign) => `<line class="${sign}" x1="0" x2="24" y1="9" y2="9" stroke-width="4"/>`;
    legend.append(item('edge score below 0', strip('negative'), 28), item('above 0', strip('positive'), 28));
  }
  if (data.hasEdgeMask) {
    const line = (level, x) => `<line x1="${x}" x2="${x + 24}" y1="9" y2="9" stroke-width="${edgeWidth(level)}"/>`;
    legend.append(item('edge mask 0, 0.5, 1', line(0, 0) + line(0.5, 30) + line(1, 60), 84));
  }
}

function item(text, drawing, width) {
  const made = element('div', 'item');
  made.innerHTML = `<svg width="${width}" height="18" aria-hidden="true">${drawing}</svg>`; // no text of the user's in it
  made.append(element('span', '', text));
  return made;
}

function shape(name, t) {
  const made = element('div', 'item'), canvas = document.createElement('canvas'), context = canvas.getContext('2d');
  [canvas.width, canvas.height, canvas.className] = [36, 36, 'shape'];
  context.beginPath();
  trace(context, t, 18, 18, 12);
  context.lineWidth = 3;
  context.strokeStyle = getComputedStyle(root).getPropertyValue('--outline').trim();
  context.stroke();
  made.append(canvas, element('span', '', name));
  return made;
}

// What is said once
const { verdict, features } = data;
find('#verdict').dataset.verdict = verdict.code;
find('#verdict .badge').textContent = verdict.name;
find('#verdict .sentence').textContent = verdict.sentence;
for (const [name, value] of verdict.numbers) {
  const pair = document.createElement('div');
  pair.append(element('dt', '', name), element('dd', '', value));
  find('#verdict dl').append(pair);
}
find('#graph-note').textContent = data.note;
find('#canvas').setAttribute('aria-label', `Graph of ${count} nodes. The table of nodes holds the same scores.`);
if (features) {
  find('#features').hidden = false;
  const kinds = [
    { name: 'Rank', kind: 'number' },
    { name: 'Feature', kind: 'text' },
    ...(features.value ? [{ name: 'Value', kind: 'number' }] : []),
    { name: features.scoreName, kind: 'score', signed: features.isSigned },
  ];
  const lines = features.name.map((name, i) => [i + 1, name, ...(features.value ? [features.value[i]] : []), features.score[i]]);
  createTable(find('#features'), kinds, lines, Math.max(...features.score.map(Math.abs)) || 1).filter(() => true);
  find('#features .note').textContent = features.note;
}
find('#graph').querySelectorAll('[data-zoom]').forEach((button) => {
  const { zoom } = button.dataset;
  button.addEventListener('click', () => (zoom === 'fit' ? graph.fit() : graph.zoomBy(Number(zoom))));
});
document.addEventListener('keydown', (event) => { if (event.key === 'Escape') graph.pin(-1); });
showTop(data.initial);
setTheme(system.matches ? 'dark' : 'light');
