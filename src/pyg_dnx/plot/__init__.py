r"""Pictures of explanations and of reports, with matplotlib where it is installed."""

from pyg_dnx.plot.bars import batch, features
from pyg_dnx.plot.graph import graphs, neighborhood
from pyg_dnx.plot.many import neighbours
from pyg_dnx.plot.trust import report

__all__ = ['batch', 'features', 'graphs', 'neighborhood', 'neighbours', 'report']
