r"""Distill n' Explain for PyTorch Geometric."""

from pyg_dnx.algorithm import DnXAlgorithm, FastDnXAlgorithm
from pyg_dnx.cache import SurrogateCache, shared_cache
from pyg_dnx.certificate import Certificate
from pyg_dnx.explanation import SurrogateWarning
from pyg_dnx.faithfulness import Check, check
from pyg_dnx.node_explanations import NodeExplanations
from pyg_dnx.surrogate import Report, Surrogate
from pyg_dnx.theory import Bounds, bound
from pyg_dnx.trust import certify
from pyg_dnx.trust_report import TrustReport, trust_report

__version__ = '0.1.0.dev0'

DnX = DnXAlgorithm
FastDnX = FastDnXAlgorithm

__all__ = [
    'Bounds',
    'Certificate',
    'Check',
    'DnX',
    'DnXAlgorithm',
    'FastDnX',
    'FastDnXAlgorithm',
    'NodeExplanations',
    'Report',
    'Surrogate',
    'SurrogateCache',
    'SurrogateWarning',
    'TrustReport',
    'bound',
    'certify',
    'check',
    'shared_cache',
    'trust_report',
]
