// Mouse, touch and keyboard on the canvas: drag to pan, wheel or two fingers to zoom, click to pin, arrows and + - 0.
function listen(canvas, { nodeAt, hover, pin, zoomBy, panBy, fit }) {
  const pointers = new Map();
  let moved = 0;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const spread = () => {
    const [[ax, ay], [bx, by]] = [...pointers.values()];
    return { distance: Math.hypot(ax - bx, ay - by) || 1, x: (ax + bx) / 2, y: (ay + by) / 2 };
  };
  const slack = (event) => (event.pointerType === 'touch' ? 14 : 4);

  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    try { canvas.setPointerCapture(event.pointerId); } catch { /* a pointer that is gone already */ }
    if (pointers.size === 0) moved = 0;
    pointers.set(event.pointerId, place(event));
  });
  canvas.addEventListener('pointermove', (event) => {
    const now = place(event), before = pointers.get(event.pointerId);
    if (!before) return hover(nodeAt(...now, slack(event)));
    moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    const was = pointers.size === 2 ? spread() : null;
    pointers.set(event.pointerId, now);
    if (was) {
      const is = spread();
      zoomBy(is.distance / was.distance, is.x, is.y);
      panBy(is.x - was.x, is.y - was.y);
    } else if (moved > 3) {
      hover(-1);
      canvas.classList.add('dragging');
      panBy(now[0] - before[0], now[1] - before[1]);
    }
  });
  const release = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    canvas.classList.remove('dragging');
    if (event.type === 'pointercancel' || moved > 3) return;
    const node = nodeAt(...place(event), slack(event));
    pin(node);
    hover(node);
  };
  canvas.addEventListener('pointerup', release);
  canvas.addEventListener('pointercancel', release);
  canvas.addEventListener('pointerleave', () => { if (pointers.size === 0) hover(-1); });
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.0015)), ...place(event));
    hover(nodeAt(...place(event), 4));
  }, { passive: false });
  canvas.addEventListener('keydown', (event) => {
    const keys = {
      ArrowLeft: () => panBy(40, 0), ArrowRight: () => panBy(-40, 0), ArrowUp: () => panBy(0, 40), ArrowDown: () => panBy(0, -40),
      '+': () => zoomBy(1.25), '=': () => zoomBy(1.25), '-': () => zoomBy(0.8), 0: fit, Escape: () => pin(-1),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
}
