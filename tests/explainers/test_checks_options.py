r"""Bad options of the explainers, of probe masks and of the cache get a sentence that names them."""

import pytest
from checks_case import INF, NAN, refused

from pyg_dnx import DnX, FastDnX, ProbeDnX, SurrogateCache, probe_masks

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')

OPTIONS = [  # the argument, a bad value, and what the error says besides the argument
    ('num_hops', -1, 'got -1'),
    ('num_hops', 1.5, 'got 1.5'),
    ('num_hops', True, 'got True'),
    ('num_hops', 'all', "got 'all'"),
    ('ridge', 0, 'got 0'),
    ('ridge', -1e-3, 'got -0.001'),
    ('ridge', NAN, 'got nan'),
    ('ridge', 'auto', "got 'auto'"),
    ('score', 'best', "'projection', 'target' (got 'best')"),
    ('score', ['target'], "got ['target']"),
    ('contrast', -1, 'got -1'),
    ('contrast', 'second', "got 'second'"),
    ('contrast', 1.0, 'got 1.0'),
    ('edge_score', 'mean', "(got 'mean')"),
    ('mask', 'softmax', "'minmax' (got 'softmax')"),
    ('cache', True, 'got True'),
    ('cache', {}, 'got {}'),
    ('max_memory', 0, 'got 0'),
    ('max_memory', -(2**30), 'got -1073741824'),
    ('max_memory', 1e9, 'got 1000000000.0'),
    ('max_memory', '1GB', "got '1GB'"),
    ('max_memory', True, 'got True'),
    ('distillation', 'mask', "'paper', 'masked' (got 'mask')"),
    ('distillation', ['masked'], "got ['masked']"),
    ('num_masks', 0, 'must be at least 1 (got 0): pass a whole number from 1 on'),
    ('num_masks', -2, 'got -2'),
    ('num_masks', 8.0, 'must be an int (got 8.0): pass a whole number from 1 on'),
    ('num_masks', True, 'got True'),
]
OPTIONS_OF_DNX = [
    ('epsilon', 0.0, 'got 0.0'),
    ('epsilon', INF, 'got inf'),
    ('epsilon', None, 'got None'),
    ('prior', 'degree', "got 'degree'"),
    ('solver', 'sgd', "got 'sgd'"),
    ('epochs', 0, 'got 0'),
    ('epochs', 10.0, 'got 10.0'),
    ('lr', -0.1, 'got -0.1'),
]
OPTIONS_OF_PROBEDNX = [
    ('num_probes', -1, 'must be at least 0 (got -1): pass a whole number from 0 on'),
    ('num_probes', 7, 'must be even, as masks come in complementary pairs (got 7): pass 8'),
    ('num_probes', 12.0, 'must be an int (got 12.0)'),
    ('num_probes', '128', "got '128'"),
    ('num_probes', True, 'got True'),
    ('answer', 'logits', "must be one of 'probability', 'logit' (got 'logits'): choose one of them"),
    ('answer', None, 'got None'),
]


@pytest.mark.parametrize(('name', 'value', 'text'), OPTIONS + OPTIONS_OF_DNX + OPTIONS_OF_PROBEDNX)
def test_options(name, value, text):
    option, kinds = (name, value, text), (FastDnX, DnX)
    if option not in OPTIONS:
        kinds = (DnX,) if option in OPTIONS_OF_DNX else (ProbeDnX,)
    elif name != 'score':
        kinds = (FastDnX, DnX, ProbeDnX)
    for kind in kinds:
        refused(lambda kind=kind: kind(**{name: value}), text)
        refused(lambda kind=kind: kind(**{name: value}), f"'{name}'")


@pytest.mark.parametrize('bad', [-1, 1.5, True, None, '3'])
def test_probe_masks(bad):
    for name, least, call in [
        ('num_nodes', 1, lambda: probe_masks(bad)),
        ('num_probes', 0, lambda: probe_masks(3, bad)),
    ]:
        refused(call, f"'{name}' must be {f'at least {least}' if bad == -1 else 'an int'} (got {bad!r}): pass a whole")


@pytest.mark.parametrize('size', [0, -3, True, 1.5, '2', None])
def test_cache_size(size):
    for text in ("'max_size'", f'got {size!r}'):
        refused(lambda: SurrogateCache(max_size=size), text)
