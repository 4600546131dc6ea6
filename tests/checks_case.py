r"""Good input, a way to spoil it, and what every error says."""

import re

import pytest
import torch
from models import graph

NAN, INF = torch.nan, torch.inf
ERRORS = (ValueError, TypeError, IndexError)


def poke(tensor, value):
    tensor = tensor.clone()
    tensor.view(-1)[1] = value
    return tensor


X, EDGES = graph()


def refused(call, text):
    r"""Checks that ``call`` is refused with ``text``, twice: a failed attempt does not count as a success."""
    for _ in range(2):
        with pytest.raises(ERRORS) as caught:
            call()
        assert text in str(caught.value)
        said = re.fullmatch(r".*'\w+'.+\(got.+\)(: .+)", str(caught.value), re.DOTALL)  # name, rule, value and remedy
        assert said or 'is not yet connected' in text, str(caught.value)
