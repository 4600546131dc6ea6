r"""The graphs with known explanations that this method was judged on, as PyG datasets, and their ground truth."""

from pyg_dnx.datasets.bitcoin import BITCOIN_GRAPHS, BitcoinDataset
from pyg_dnx.datasets.loading import load
from pyg_dnx.datasets.motif import MOTIF_GRAPHS, MotifDataset
from pyg_dnx.datasets.truth import edge_truth, node_truth
from pyg_dnx.datasets.whole_graphs import ATOMS, ba_2motif, molecules

__all__ = [
    'ATOMS',
    'BITCOIN_GRAPHS',
    'MOTIF_GRAPHS',
    'BitcoinDataset',
    'MotifDataset',
    'ba_2motif',
    'edge_truth',
    'load',
    'molecules',
    'node_truth',
]
