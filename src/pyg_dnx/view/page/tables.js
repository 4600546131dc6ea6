// A table that sorts by any column. Each row is an array of cells; rows are built once, then hidden, shown and moved.
function createTable(section, columns, rows, limit, onSelect) {
  const table = section.querySelector('table'), body = table.tBodies[0], headers = [];
  let order = { column: 0, descending: false };

  const head = table.tHead.insertRow();
  columns.forEach((column, c) => {
    const cell = element('th', column.kind === 'text' ? 'text' : 'number');
    const button = element('button', '', column.name);
    cell.scope = 'col';
    if (column.kind === 'score') cell.colSpan = 2;
    button.type = 'button';
    button.addEventListener('click', () => sort(c, order.column === c ? !order.descending : column.kind === 'score'));
    cell.append(button);
    head.append(cell);
    headers.push(cell);
  });

  const lines = rows.map((row, r) => {
    const line = document.createElement('tr');
    row.forEach((value, c) => {
      const kind = columns[c].kind;
      const cell = element('td', kind === 'text' ? 'text' : 'number');
      if (kind === 'text') cell.title = value;
      if (columns[c].selects) {
        const button = element('button', '', value);
        button.type = 'button';
        cell.append(button);
      } else {
        cell.textContent = kind === 'score' ? formatScore(value, columns[c].signed) : value === null ? '–' : String(value).replace('-', '−');
      }
      line.append(cell);
      if (kind === 'score') line.append(bar(value / limit, columns[c].signed));
    });
    if (onSelect) line.addEventListener('click', () => onSelect(r));
    return line;
  });

  function sort(column, descending) {
    order = { column, descending };
    const compare = (a, b) => {
      const [one, two] = [rows[a][column], rows[b][column]];
      if (one === null || two === null) return (one === null) - (two === null) || a - b;
      const sign = typeof one === 'number' ? one - two : collator.compare(one, two);
      return (descending ? -sign : sign) || a - b;
    };
    body.append(...[...rows.keys()].sort(compare).map((r) => lines[r]));
    headers.forEach((cell, c) => cell.setAttribute('aria-sort', c !== column ? 'none' : descending ? 'descending' : 'ascending'));
  }

  function filter(keep) {
    let visible = 0;
    lines.forEach((line, r) => { line.hidden = !keep(r); visible += !line.hidden; });
    table.dataset.shown = visible;
  }

  function select(r) {
    lines.forEach((line, i) => line.classList.toggle('selected', i === r));
    if (r < 0) return;
    const frame = table.parentElement, row = lines[r]; // scrolls the table and leaves the page where it is
    const above = row.offsetTop - table.tHead.offsetHeight, below = row.offsetTop + row.offsetHeight - frame.clientHeight;
    if (frame.scrollTop > above) frame.scrollTop = above;
    if (frame.scrollTop < below) frame.scrollTop = below;
  }

  sort(0, false);
  return { filter, select };
}

const collator = new Intl.Collator('en', { numeric: true });

// A bar from the middle of its cell if scores have a sign, from the left otherwise.
function bar(share, signed) {
  const cell = element('td', 'bar'), line = document.createElement('i');
  const size = Math.min(1, Math.abs(share) || 0) * (signed ? 50 : 100);
  line.style.width = `${size}%`;
  line.style.marginLeft = !signed ? '0' : `${share < 0 ? 50 - size : 50}%`;
  line.style.background = share < 0 ? 'var(--negative)' : 'var(--positive)';
  cell.append(line);
  return cell;
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function formatScore(value, signed) {
  if (value === null) return '–';
  const size = Math.abs(value);
  let text = size >= 100 ? size.toFixed(1) : size.toPrecision(3);
  if (size < 1e-3 || size >= 1e5) text = size === 0 ? '0' : size.toExponential(2);
  return (value < 0 ? '−' : signed && value > 0 ? '+' : '') + text;
}
