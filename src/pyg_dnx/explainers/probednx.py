r"""ProbeDnX: FastDnX's question, put to the model itself, with some of its neighbours blanked."""

from __future__ import annotations

from typing import Any

from torch_geometric.explain.config import MaskType, ModelTaskLevel

from pyg_dnx import options
from pyg_dnx.distill.cache import SurrogateCache, shared_cache
from pyg_dnx.explainers.base import DistillAndExplain
from pyg_dnx.results.certificate import DEFAULT_DOUBT
from pyg_dnx.results.warnings import warn_about_missing_probes
from pyg_dnx.scores.probe_rule import Probing
from pyg_dnx.scores.rules import Projection, Rule
from pyg_dnx.teacher.probes import NUM_PROBES
from pyg_dnx.teacher.teacher import Teacher

ASKED_EDGES = {'probes': 'edges', 'pairs': 'pairs'}
ASKED_FEATURES = {MaskType.common_attributes: 'columns', MaskType.attributes: 'entries'}


class ProbeDnXAlgorithm(DistillAndExplain):
    r"""ProbeDnX, which explains the model where FastDnX explains its surrogate, and still only evaluates it.

    The model is evaluated once for each of some random masks that blank the features of nodes, the same for all
    explained nodes. At each of these, its answers are fitted by a linear function of which neighbours it saw
    (:mod:`~pyg_dnx.scores.local_fit`). What it expects before is that effects have sizes like
    :math:`\tilde{A}^L_{ij}`, that neighbours with like features have effects in common, and that the surrogate's
    effects are likely (:class:`~pyg_dnx.scores.probed.Probed`). The effects found are the scores.
    ``probe_r2``, the R² of the local fit, each pair of probes predicted from the others, says how far to trust
    them. Several nodes at once are explained jointly, by the sum of their scores.

    Where masks of edges or features are wanted, the model is evaluated as many times without random ones of them,
    and their scores are effects of the same kind. Without probes, scores are FastDnX's, with a warning.

    Args:
        num_hops, ridge, contrast, mask, cache, max_memory, doubt: See :class:`FastDnXAlgorithm`.
        edge_score (str): ``'probes'`` are effects of edges that are really dropped, each by itself, ``'pairs'`` of both
            directions between two nodes together, which share the effect. The other ways go by the
            scores of nodes, as in :class:`FastDnXAlgorithm`. (default: ``'probes'``)
        num_probes (int, optional): The number of random masks, an even one. Besides what distillation takes, the model
            is evaluated so many times, and once with all nodes blanked. (default: ``1024`` for nodes, and ``512`` for
            graphs)
        answer (str): What is explained of a class: its ``'probability'``, or its ``'logit'``, the logarithm of it less
            the mean over classes. With ``contrast``, the difference between the two classes. For regression it is the
            output, along the way from the model's answer to blank features. (default: ``'probability'``)
        shortlist (int): Re-ranks so many of the highest scores by the model's own responses to these nodes: how much
            its answer falls without one, and rises with it alone. This takes two evaluations for each, on copies of the
            neighbourhood where the model allows that. (default: ``0``)
        feature_score (str): ``'probes'`` are effects of features that are set to zero: of columns, at all nodes, for
            masks of type ``'common_attributes'``, and of single features for ``'attributes'``. ``'shares'`` are shares
            of the scores of nodes, in proportion to the surrogate's. Where there are so many edges or features that
            their masks would take a quarter of the memory, they go by ``'flow'`` and ``'shares'``.
            (default: ``'probes'``)
        distillation: See :class:`FastDnXAlgorithm`; the surrogate says which effects are to be expected. It is
            distilled under at most ``num_probes`` masks. (default: ``'masked'``)
        **shared: The other options of :class:`FastDnXAlgorithm`.
    """

    _options = (
        *('num_hops', 'ridge', 'contrast', 'edge_score', 'mask', 'max_memory', 'doubt', 'distillation', 'num_masks'),
        *('num_probes', 'answer', 'shortlist', 'feature_score'),
    )
    _edge_scores = ('probes', 'pairs', *DistillAndExplain._edge_scores)

    def __init__(
        self,
        num_hops: int | str | None = None,
        ridge: float | None = None,
        contrast: int | str | None = None,
        edge_score: str = 'probes',
        mask: str = 'rank',
        cache: SurrogateCache | None = shared_cache,
        max_memory: int | None = None,
        doubt: float = DEFAULT_DOUBT,
        *,
        num_probes: int | None = None,
        answer: str = 'probability',
        shortlist: int = 0,
        distillation: str = 'masked',
        feature_score: str = 'probes',
        **shared: Any,
    ) -> None:
        first = (num_hops, ridge, 'target', contrast, edge_score, mask, cache, max_memory, doubt)
        super().__init__(*first, distillation=distillation, **shared)
        self._given['num_probes'] = None if num_probes is None else options.even('num_probes', num_probes)
        self._take_defaults('node')
        self.feature_score = options.choice('feature_score', feature_score, ('probes', 'shares'))
        self.answer = options.choice('answer', answer, ('probability', 'logit'))
        self.shortlist = options.count('shortlist', shortlist, least=0)

    def _take_defaults(self, level: str) -> None:
        super()._take_defaults(level)
        given = self._given.get('num_probes')
        self.num_probes: int = NUM_PROBES[level] if given is None else given

    @property
    def _needs_surrogate(self) -> bool:
        return self.model_config.task_level != ModelTaskLevel.graph or self.num_probes == 0

    @property
    def _takes_given_pairs(self) -> bool:
        return self.model_config.task_level == ModelTaskLevel.edge and self.num_probes > 0

    @property
    def _num_masks(self) -> int:
        return min(self.num_probes, super()._num_masks)

    @property
    def _num_probes(self) -> int:
        return self.num_probes

    @property
    def _also(self) -> tuple[str, ...]:
        r"""What the model is asked about besides nodes, as masks are wanted for it."""
        config, found = self.explainer_config, []
        if config.edge_mask_type is not None and self.edge_score in ASKED_EDGES:
            found.append(ASKED_EDGES[self.edge_score])
        if config.node_mask_type in ASKED_FEATURES and self.feature_score == 'probes':
            found.append(ASKED_FEATURES[config.node_mask_type])
        return tuple(found)

    def _rule(self, teacher: Teacher) -> Rule:
        if self.num_probes == 0 or not teacher.can_be_asked:
            warn_about_missing_probes()
            return Projection()
        return Probing(self._goal, self.num_probes, self.answer, self.shortlist, self.how, self._also)
