r"""Explanations of example graphs in double precision, and the order that all bounds on them are in."""

import torch
from helpers import example_graphs
from models import explainer

from pyg_dnx import FastDnX

ROUNDING = 1e-5  # of a model in single precision
FIELDS = ('unfaithfulness', 'surrogate_unfaithfulness', 'alpha', 'errors')
LEMMAS = ('lemma', 'probable_lemma', 'tight_lemma', 'tight_probable_lemma')
THEOREMS = ('theorem', 'probable_theorem', 'tight_theorem', 'tight_probable_theorem')
NODES = torch.tensor([0, 3, 7])


def keywords(example):
    return {} if example.edge_weight is None else {'edge_weight': example.edge_weight}


def in_double(example):
    weight = None if example.edge_weight is None else example.edge_weight.double()
    return example._replace(x=example.x.double(), edge_weight=weight)


def explained(model, task='multiclass raw', name='looped', index=NODES, kind=FastDnX, **options):
    r"""An explainer, and its explanation of some nodes of an example graph in double precision."""
    example = in_double(example_graphs()[name])
    explain = explainer(model.double(), kind(**options), task)
    return explain, explain(example.x, example.edge_index, index=index, **keywords(example))


def values_of(bounds, names=FIELDS + LEMMAS + THEOREMS):
    return {name: getattr(bounds, name) for name in names}


def assert_in_order(bounds):
    for name, value in values_of(bounds).items():
        assert value.shape == bounds.index.shape, name
        assert bool(value.isfinite().all()), name
        assert bool((value >= 0.0).all()), name
    ordered = [
        ('surrogate_unfaithfulness', 'tight_lemma'),
        ('surrogate_unfaithfulness', 'lemma'),
        ('tight_lemma', 'lemma'),
        ('tight_probable_lemma', 'probable_lemma'),
        ('unfaithfulness', 'tight_theorem'),
        ('unfaithfulness', 'theorem'),
        ('tight_theorem', 'theorem'),
        ('tight_probable_theorem', 'probable_theorem'),
    ]
    for low, high in ordered:
        assert bool((getattr(bounds, low) <= getattr(bounds, high) + ROUNDING).all()), (low, high)
