r"""Distill n' Explain for PyTorch Geometric."""

from pyg_dnx import plot
from pyg_dnx.distill.cache import SurrogateCache, shared_cache
from pyg_dnx.distill.surrogate import Report, Surrogate
from pyg_dnx.explainers.dnx import DnXAlgorithm
from pyg_dnx.explainers.fastdnx import FastDnXAlgorithm
from pyg_dnx.explainers.many_of import explain_graphs, explain_links, explain_nodes
from pyg_dnx.explainers.probednx import ProbeDnXAlgorithm
from pyg_dnx.results.certificate import Certificate
from pyg_dnx.results.graph_explanations import GraphExplanations
from pyg_dnx.results.node_explanations import LinkExplanations, NodeExplanations
from pyg_dnx.results.warnings import SurrogateWarning
from pyg_dnx.teacher.probes import probe_edge_masks, probe_masks
from pyg_dnx.trust.measure import Check, check
from pyg_dnx.trust.refine import Refined, refine
from pyg_dnx.trust.report import TrustReport, certify, trust_report
from pyg_dnx.trust.theory import Bounds, bound
from pyg_dnx.view.html import to_html

__version__ = '0.2.0'

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
    'GraphExplanations',
    'LinkExplanations',
    'NodeExplanations',
    'ProbeDnX',
    'ProbeDnXAlgorithm',
    'Refined',
    'Report',
    'Surrogate',
    'SurrogateCache',
    'SurrogateWarning',
    'TrustReport',
    'bound',
    'certify',
    'check',
    'explain_graphs',
    'explain_links',
    'explain_nodes',
    'plot',
    'probe_edge_masks',
    'probe_masks',
    'refine',
    'shared_cache',
    'to_html',
    'trust_report',
]
