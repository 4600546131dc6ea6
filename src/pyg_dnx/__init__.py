r"""Distill n' Explain for PyTorch Geometric."""

from pyg_dnx import plot
from pyg_dnx.algorithm import DnXAlgorithm, FastDnXAlgorithm
from pyg_dnx.cache import SurrogateCache, shared_cache
from pyg_dnx.certificate import Certificate
from pyg_dnx.explanation import SurrogateWarning
from pyg_dnx.faithfulness import Check, check
from pyg_dnx.html import to_html
from pyg_dnx.node_explanations import NodeExplanations
from pyg_dnx.probe_algorithm import ProbeDnXAlgorithm
from pyg_dnx.probing import probe_masks
from pyg_dnx.surrogate import Report, Surrogate
from pyg_dnx.theory import Bounds, bound
from pyg_dnx.trust import certify
from pyg_dnx.trust_report import TrustReport, trust_report

__version__ = '0.1.0.dev0'

DnX = DnXAlgorithm
FastDnX = FastDnXAlgorithm
ProbeDnX = ProbeDnXAlgorithm

__all__ = [
    'Bounds',
    'Certificate',
    'Check',
    'DnX',
    'DnXAlgorithm',
    'FastDnX',
    'FastDnXAlgorithm',
    'NodeExplanations',
    'ProbeDnX',
    'ProbeDnXAlgorithm',
    'Report',
    'Surrogate',
    'SurrogateCache',
    'SurrogateWarning',
    'TrustReport',
    'bound',
    'certify',
    'check',
    'plot',
    'probe_masks',
    'shared_cache',
    'to_html',
    'trust_report',
]
