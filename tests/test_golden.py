r"""Explanations, and files, of an earlier version: tests/golden/make.py says which, and how they were made."""

import re
from pathlib import Path

import pytest
import torch
from golden.cases import compare, explain, of_many

from pyg_dnx import NodeExplanations, Surrogate

FOLDER = Path(__file__).parent / 'golden'
GOLDEN = torch.load(FOLDER / 'golden.pt', weights_only=True)
EXPLANATIONS = [file for file in GOLDEN['files'] if file != 'Surrogate.pt']


@pytest.mark.parametrize('name', GOLDEN['cases'])
def test_explanations_are_as_before(name):
    case = GOLDEN['cases'][name]
    compare(explain(case, GOLDEN['graphs'], GOLDEN['teachers']), case['found'], case)


def numbers_of(table):
    r"""The heading of a table, and its numbers."""
    heading, *lines = table.splitlines()
    return heading, torch.tensor([[float(value) for value in line.split(',')] for line in lines])


@pytest.mark.parametrize('file', EXPLANATIONS)
def test_files_of_explanations_are_read(file, tmp_path):
    x, edge_index, edge_weight = GOLDEN['graphs']['weighted'].values()
    expected = GOLDEN['files'][file]
    loaded = NodeExplanations.load(FOLDER / file, x, edge_index, edge_weight=edge_weight)
    compare(
        of_many(loaded, range(len(loaded))), expected['found'], {'options': {'mask': 'rank'}, 'dtype': torch.float32}
    )
    assert all(explanation.validate(raise_on_error=True) for explanation in loaded)

    scores_only = NodeExplanations.load(FOLDER / file)
    scores_only.to_csv(tmp_path / 'table.csv')
    heading, numbers = numbers_of((tmp_path / 'table.csv').read_text(encoding='utf-8'))
    expected_heading, expected_numbers = numbers_of(expected['table'])
    assert heading == expected_heading
    torch.testing.assert_close(numbers, expected_numbers)
    with pytest.raises(ValueError, match=re.escape("'NodeExplanations.load'")):
        scores_only[0]


def test_file_of_surrogate_is_read():
    x, edge_index, edge_weight = GOLDEN['graphs']['weighted'].values()
    loaded, expected = Surrogate.load(FOLDER / 'Surrogate.pt'), GOLDEN['files']['Surrogate.pt']
    assert (loaded.num_hops, loaded.flow) == (expected['num_hops'], expected['flow'])
    assert {name: getattr(loaded.report, name) for name in expected['report']} == expected['report']
    torch.testing.assert_close(loaded(x, edge_index, edge_weight), expected['logits'])
