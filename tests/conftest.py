import pytest
import torch
from helpers import example_graphs
from hypothesis import settings

from pyg_dnx import shared_cache

settings.register_profile('ci', max_examples=40, deadline=None, derandomize=True)
settings.register_profile('thorough', max_examples=10_000, deadline=None)
settings.load_profile('ci')
torch.set_num_threads(1)  # thousands of tiny graphs: handing each to several threads costs more than the work


@pytest.fixture(params=list(example_graphs()))
def graph(request):
    return example_graphs()[request.param]


@pytest.fixture(autouse=True)
def _empty_cache():
    shared_cache.clear()
    yield
    shared_cache.clear()
