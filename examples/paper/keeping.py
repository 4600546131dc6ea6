r"""What a page keeps of its older tables, so that a row or a cell can be measured without all others."""

from itertools import takewhile

from explainers import EDGE_EXPLAINERS, EXPLAINERS
from summary import PAPER_MODELS

ORDER = ['30%', '50%', '70%', *PAPER_MODELS, '', *EXPLAINERS, *EDGE_EXPLAINERS, 'ceiling']  # of rows


def whole(new, old):
    r"""The new table, or the old one if nothing of it was measured anew: its rows compare on the same teachers only."""
    return new if any(isinstance(cell, dict) for row in new['rows'] for cell in row) else old


def by_cell(new, old):
    r"""The new table, with what the old one has in cells and rows that were not measured anew."""
    if new['columns'] != old['columns']:
        return new
    labels = [[tuple(takewhile(lambda c: isinstance(c, str), row)) for row in table['rows']] for table in (new, old)]
    rows = dict(zip(labels[1], old['rows'], strict=True))
    for label, row in zip(labels[0], new['rows'], strict=True):
        rows[label] = [b if c is None else c for c, b in zip(row, rows.get(label, row), strict=True)]
    order = list(rows)
    if len(order) > len(labels[1]):
        order.sort(key=lambda label: [ORDER.index(word) if word in ORDER else len(ORDER) for word in label])
    return {'columns': new['columns'], 'rows': [rows[label] for label in order]}
