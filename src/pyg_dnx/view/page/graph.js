// The graph on a canvas: positions are given and never move, what changes is the view, what is shown, and what is marked.
// What is drawn can be read from the data-attributes of the canvas: shown, edges, hovered, pinned, view.
function createGraph(canvas, data, { onHover, onPin }) {
  const { x, y, score, label, type } = data.nodes, { source, target, weight, oneWay } = data.edges;
  const count = x.length, context = canvas.getContext('2d');
  const limit = Math.max(...score.map(Math.abs)) || 1;
  const edgeLimit = Math.max(...(data.edges.score ?? []).map(Math.abs), 0) || 1;
  const strength = score.map((value) => Math.sqrt(Math.abs(value) / limit));
  const least = (i) => (data.isGraph ? 10 : i < data.explained ? 8 : 4), most = (i) => (data.isGraph ? 14 : i < data.explained ? 12 : 11);
  const radius = strength.map((value, i) => least(i) + (most(i) - least(i)) * value);
  const neighbours = score.map(() => new Set());
  source.forEach((a, e) => { neighbours[a].add(target[e]); neighbours[target[e]].add(a); });
  const captions = label.map((text) => (text.length > 22 ? text.slice(0, 21) + '…' : text));

  let shown = [], visibleEdges = [], captioned = new Map(), colours = [], edgeColours = null, style = {};
  let hovered = -1, pinned = -1, zoom = 1, left = 0, top = 0, width = 0, height = 0, ratio = 1, frame = 0, touched = false;
  const isShown = new Uint8Array(count);
  const px = (i) => x[i] * zoom + left, py = (i) => y[i] * zoom + top;
  const size = (i) => radius[i] * (zoom < 1 ? zoom : Math.sqrt(zoom));

  function schedule() { frame = frame || requestAnimationFrame(draw); }

  function draw() {
    cancelAnimationFrame(frame);
    frame = 0;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    drawRings();
    drawEdges();
    drawLinks();
    drawRingNames();
    drawNodes();
    drawCaptions();
    Object.assign(canvas.dataset, { shown: shown.length, edges: visibleEdges.length, hovered, pinned });
    canvas.dataset.view = [zoom, left, top].join(' ');
  }

  function drawRings() {
    context.lineWidth = 1;
    context.strokeStyle = style.line;
    for (const ring of data.rings) {
      context.beginPath();
      context.arc(left, top, ring.radius * zoom, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  function drawRingNames() {
    context.font = '11px system-ui, sans-serif';
    for (const ring of data.rings) write(ring.name, left, top - ring.radius * zoom + 4, style.soft);
  }

  function write(text, atX, atY, colour) {
    context.textAlign = 'center';
    context.lineJoin = 'round';
    context.lineWidth = 4;
    context.strokeStyle = style.card;
    context.strokeText(text, atX, atY);
    context.fillStyle = colour;
    context.fillText(text, atX, atY);
  }

  function drawEdges() {
    const focus = pinned >= 0 ? pinned : hovered;
    const calm = Math.min(1, Math.sqrt(400 / visibleEdges.length)); // where there are many, they are faint
    const groups = new Map(); // one stroke for all edges that look the same
    for (const e of visibleEdges) {
      const marked = source[e] === focus || target[e] === focus;
      const level = Math.round(weight[e] * 6), colour = edgeColours?.[e] ?? style.edge;
      const key = `${marked ? 1 : 0} ${level} ${colour}`;
      if (!groups.has(key)) groups.set(key, { marked, level: level / 6, colour, edges: [] });
      groups.get(key).edges.push(e);
    }
    for (const { marked, level, colour, edges } of [...groups.values()].sort((a, b) => a.marked - b.marked || a.level - b.level)) {
      context.strokeStyle = context.fillStyle = marked ? style.ink : colour;
      context.globalAlpha = marked ? 0.9 : edgeColours ? 1 : (0.18 + 0.6 * level) * calm * (pinned >= 0 ? 0.4 : 1);
      context.lineWidth = edgeWidth(level) * Math.min(1.5, Math.max(0.5, zoom)) * (marked ? 1 : Math.sqrt(calm));
      for (const e of edges) { // one by one: browsers are slow at paths that cross themselves
        context.beginPath();
        context.moveTo(px(source[e]), py(source[e]));
        context.lineTo(px(target[e]), py(target[e]));
        context.stroke();
      }
      if (visibleEdges.length > MAX_ARROWS && !marked) continue;
      context.beginPath();
      for (const e of edges) if (oneWay[e]) arrowHead(source[e], target[e], 4 + context.lineWidth);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  function drawLinks() { // the explained ones, whether they are edges or not
    context.setLineDash([5, 4]);
    context.strokeStyle = style.ink;
    context.lineWidth = 1.5;
    for (const [a, b] of data.links) {
      if (!isShown[a] || !isShown[b]) continue;
      context.beginPath();
      context.moveTo(px(a), py(a));
      context.lineTo(px(b), py(b));
      context.stroke();
    }
    context.setLineDash([]);
  }

  function arrowHead(a, b, length) {
    const angle = Math.atan2(py(b) - py(a), px(b) - px(a)), gap = size(b) + 1;
    const tipX = px(b) - gap * Math.cos(angle), tipY = py(b) - gap * Math.sin(angle);
    context.moveTo(tipX, tipY);
    for (const turn of [2.7, -2.7]) {
      context.lineTo(tipX + length * Math.cos(angle + turn), tipY + length * Math.sin(angle + turn));
    }
    context.closePath();
  }

  const isNear = (i) => pinned < 0 || i === pinned || neighbours[pinned].has(i);

  function drawNodes() {
    context.fillStyle = style.faint;
    context.beginPath();
    for (let i = 0; i < count; i++) if (!isShown[i]) context.rect(px(i) - 1, py(i) - 1, 2, 2);
    context.fill();
    for (let place = shown.length - 1; place >= 0; place--) { // the most important on top
      const i = shown[place], marked = i < data.explained || i === pinned || i === hovered;
      context.globalAlpha = isNear(i) ? 1 : 0.25;
      context.beginPath();
      trace(context, type ? type[i] : 0, px(i), py(i), size(i));
      context.fillStyle = colours[i];
      context.fill();
      context.lineWidth = marked ? 2.5 : 0.8;
      context.strokeStyle = marked ? style.ink : style.outline;
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  // Which captions fit, in a node or else below, above or beside it, without touching one another or a node. Where one finds
  // no room, no node with less than half of its score has one. It depends on zoom alone, so that panning costs nothing.
  // A single explained node always has one.
  function chooseCaptions() {
    const boxes = shown.map((i) => [px(i) - size(i), py(i) - size(i), px(i) + size(i), py(i) + size(i)]);
    for (const ring of data.rings) boxes.push([left - 25, top - ring.radius * zoom - 8, left + 25, top - ring.radius * zoom + 8]);
    captioned = new Map();
    context.font = '12px system-ui, sans-serif';
    let floor = 0;
    shown.slice(0, MAX_CAPTIONS).forEach((i, place) => {
      if (i >= data.explained && Math.abs(score[i]) < floor) return;
      const half = context.measureText(captions[i]).width / 2 + 3, beside = size(i) + half;
      if (half < size(i) + 1) return captioned.set(i, null); // in the node
      for (const [dx, dy] of [[0, size(i) + 13], [0, -size(i) - 5], [beside, 4], [-beside, 4]]) {
        const box = [px(i) + dx - half, py(i) + dy - 11, px(i) + dx + half, py(i) + dy + 4];
        if (captioned.has(i) || boxes.some((other, o) => o !== place && overlap(box, other))) continue;
        boxes.push(box);
        captioned.set(i, [dx, dy]);
      }
      if (i >= data.explained && !captioned.has(i)) floor = Math.max(floor, Math.abs(score[i]) / 2);
    });
    if (data.explained === 1 && !captioned.has(0)) captioned.set(0, [0, size(0) + 13]);
  }

  function drawCaptions() {
    for (const i of new Set([...captioned.keys(), ...(pinned >= 0 ? [pinned] : [])])) {
      context.font = (i === pinned || i < data.explained ? '600 ' : '') + '12px system-ui, sans-serif';
      context.globalAlpha = isNear(i) ? 1 : 0.3;
      if (captioned.get(i) === null) {
        context.textAlign = 'center';
        context.fillStyle = inkOn(colours[i]);
        context.fillText(captions[i], px(i), py(i) + 4);
        continue;
      }
      const [dx, dy] = captioned.get(i) ?? [0, size(i) + 13];
      write(captions[i], px(i) + dx, py(i) + dy, style.ink);
    }
    context.globalAlpha = 1;
  }

  function nodeAt(atX, atY, slack) {
    let best = -1, least = slack;
    for (const i of shown) {
      const gap = Math.hypot(px(i) - atX, py(i) - atY) - size(i);
      if (gap < least) [best, least] = [i, gap];
    }
    return best;
  }

  function zoomBy(factor, atX = width / 2, atY = height / 2) {
    const next = Math.min(40, Math.max(0.05, zoom * factor));
    [left, top] = [atX - (atX - left) * next / zoom, atY - (atY - top) * next / zoom];
    zoom = next;
    touched = true;
    chooseCaptions();
    schedule();
  }

  function fit() {
    const reach = Math.max(...shown.map((i) => Math.hypot(x[i], y[i])), 30); // rings stay in the middle
    const ends = (places) => data.rings.length > 0 ? [-reach, reach] : [Math.min(...shown.map((i) => places[i])), Math.max(...shown.map((i) => places[i]))];
    const [[west, east], [north, south]] = [ends(x), ends(y)];
    zoom = Math.min(3.5, width / Math.max(east - west + 84, 144), height / Math.max(south - north + 84, 144));
    [left, top, touched] = [width / 2 - zoom * (west + east) / 2, height / 2 - zoom * (north + south) / 2, false];
    chooseCaptions();
    schedule();
  }

  function panBy(dx, dy) { left += dx; top += dy; touched = true; schedule(); }

  function resize() {
    [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1];
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (!touched) fit();
    else chooseCaptions();
    draw();
  }

  function show(nodes) {
    isShown.fill(0);
    shown = pinned < 0 || nodes.includes(pinned) ? nodes : [...nodes, pinned];
    for (const i of shown) isShown[i] = 1;
    visibleEdges = [...source.keys()].filter((e) => isShown[source[e]] && isShown[target[e]]);
    if (hovered >= 0 && !isShown[hovered]) hover(-1);
    if (!touched) return fit(); // until the reader chooses a view
    chooseCaptions();
    schedule();
  }

  function hover(i) {
    if (i !== hovered) { hovered = i; canvas.classList.toggle('over', i >= 0); schedule(); }
    onHover(i, i < 0 ? null : { x: px(i), y: py(i), gap: size(i), width, height });
  }

  function pin(i) {
    pinned = i;
    onPin(i); // which shows it, if it wasn't
    if (i >= 0 && (px(i) < 0 || py(i) < 0 || px(i) > width || py(i) > height)) panBy(width / 2 - px(i), height / 2 - py(i));
    schedule();
  }

  function paint(colourOf, read) {
    colours = score.map((value, i) => colourOf(Math.sign(value) * strength[i]));
    edgeColours = data.edges.score && data.edges.score.map((value) => colourOf(Math.sign(value) * Math.sqrt(Math.abs(value) / edgeLimit), 'edge'));
    style = read(['line', 'soft', 'faint', 'edge', 'ink', 'outline', 'card']);
    draw();
  }

  new ResizeObserver(resize).observe(canvas);
  listen(canvas, { nodeAt, hover, pin, zoomBy, panBy, fit });
  return { show, pin, paint, zoomBy, fit, draw, limit, isPinned: (i) => i === pinned };
}

const MAX_CAPTIONS = 300, MAX_ARROWS = 1000; // beyond which they are only in the way

// The outline of a node: a circle, or the shape of its type.
function trace(context, type, atX, atY, radius) {
  const [corners, turn] = SHAPES[type % SHAPES.length];
  if (corners === 0) return context.arc(atX, atY, radius, 0, 2 * Math.PI);
  for (let corner = 0; corner < corners; corner++) {
    const angle = turn + 2 * Math.PI * corner / corners;
    context.lineTo(atX + 1.15 * radius * Math.cos(angle), atY + 1.15 * radius * Math.sin(angle));
  }
  context.closePath();
}

// Corners and the angle of the first: circle, square, diamond, triangles, pentagon, hexagon, octagon.
const SHAPES = [
  [0, 0], [4, Math.PI / 4], [4, 0], [3, -Math.PI / 2], [3, Math.PI / 2], [5, -Math.PI / 2], [6, 0], [8, Math.PI / 8],
];

function inkOn(colour) { // black or white, by what the eye takes for light
  const [red, green, blue] = colour.match(/\d+/g).map(Number);
  return 0.3 * red + 0.6 * green + 0.1 * blue > 130 ? '#000000' : '#ffffff';
}

function overlap(a, b) { return a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]; } // left, top, right, bottom

function edgeWidth(level) { return 0.5 + 3.5 * level * level; }
