r"""Distill n' Explain for PyTorch Geometric."""

from pyg_dnx.algorithm import DnXAlgorithm, FastDnXAlgorithm
from pyg_dnx.cache import SurrogateCache, shared_cache
from pyg_dnx.explanation import SurrogateWarning
from pyg_dnx.node_explanations import NodeExplanations
from pyg_dnx.surrogate import Report, Surrogate

__version__ = '0.1.0.dev0'

DnX = DnXAlgorithm
FastDnX = FastDnXAlgorithm

__all__ = [
    'DnX',
    'DnXAlgorithm',
    'FastDnX',
    'FastDnXAlgorithm',
    'NodeExplanations',
    'Report',
    'Surrogate',
    'SurrogateCache',
    'SurrogateWarning',
    'shared_cache',
]
