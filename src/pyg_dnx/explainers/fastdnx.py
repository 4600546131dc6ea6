r"""FastDnX of `"Distill n' Explain" <https://arxiv.org/abs/2303.10139>`_, for PyG's explain API."""

from __future__ import annotations

from pyg_dnx.explainers.base import DistillAndExplain
from pyg_dnx.scores.rules import Projection
from pyg_dnx.teacher.teacher import Teacher


class FastDnXAlgorithm(DistillAndExplain):
    r"""FastDnX of `"Distill n' Explain: explaining graph neural networks using simple surrogates"
    <https://arxiv.org/abs/2303.10139>`_, a closed form.

    The model is distilled, once, into a linear surrogate :math:`Z = \tilde{A}^L X \Theta + b`. Then node :math:`j`
    scores :math:`\tilde{A}^L_{ij} X_j \Theta (Z_i - b)^\top` for node :math:`i`. Several nodes at once are explained
    jointly, by the sum of their scores.

    Args:
        num_hops (int or str, optional): How many hops the surrogate looks. ``None`` is the receptive field of the
            model's PyG layers. ``'auto'`` decides on held-out nodes between 0 and that; so does ``None``, between 0
            and 3, for a model without such layers. (default: ``None``)
        ridge (float, optional): The weight of the penalty on :math:`\Theta`; ``None`` is 1e-5. (default: ``None``)
        score (str): ``'projection'`` scores nodes by their part in the surrogate's logits, as in the paper,
            ``'target'`` by their evidence for the model's class (for regression, toward its output). Explanations of
            type ``'phenomenon'`` always go by the given target. (default: ``'projection'``, and ``'target'`` for
            distillation ``'masked'``)
        contrast (int or str, optional): Scores nodes by why the model's class (or the given target) rather than this
            one; ``'runner_up'`` is the model's second choice. (default: ``None``)
        edge_score (str): ``'endpoints'`` is the paper's sum of the scores of both ends, ``'geometric'`` the geometric
            mean of their positive parts, ``'flow'`` what the edge carries in the surrogate, exactly, and ``'drop'`` how
            much the surrogate's evidence falls with the edge, as other messages count for more then: better for models
            that normalise or attend, worse for sums and means. (default: ``'flow'``)
        mask (str): How scores become masks in [0, 1]: by ``'rank'`` within the neighbourhood, the ``'positive'`` part
            over its maximum, or ``'minmax'``. These are highest where removing something changes the prediction.
            ``'size'`` ranks scores by size, whatever their signs, for masks to keep: what counts against the class is
            part of what reproduces its probability. The class itself is kept better by ``'rank'``.
            (default: ``'rank'``)
        cache (SurrogateCache, optional): Where distilled models are kept; ``None`` turns caching off.
            (default: one cache, shared by all explainers)
        max_memory (int, optional): About how many bytes to work in, beyond what goes in and out; ``None`` is half of
            what is free. Propagated features that take more are kept in temporary files. (default: ``None``)
        doubt (float): The expected unfaithfulness above which an explanation is called doubtful, as a distance between
            class probabilities; for regression, in standard deviations of the outputs. (default: ``0.2``)
        distillation (str): ``'paper'`` distils the model's class probabilities through a softmax, from one evaluation.
            ``'masked'`` fits these probabilities themselves, by least squares, also where the features of random nodes
            are blanked, which takes an evaluation for each mask. Hops are chosen as for ``'paper'``. For regression,
            the two differ in the masks only. (default: ``'paper'``)
        num_masks (int): The number of masks for ``'masked'``. (default: ``8``)
        how (str, optional): What masks take away: ``'features'`` blanks the features of nodes, ``'nodes'`` removes
            them with their edges. (default: ``'features'``, and ``'nodes'`` at graph level)
        pair_argument (str): The model's argument that holds the pairs of nodes, at edge level.
            (default: ``'edge_label_index'``)
        filter (str): The surrogate's powers of :math:`\tilde{A}`: ``'sgc'`` has the last alone, as in the paper,
            ``'sign'`` all, with weights of their own, and ``'ppr'`` all, with those of personalised PageRank.
            (default: ``'sgc'``)
        class_names, feature_names, node_names (list or dict, optional): What to call them in pictures, pages and
            tables. (default: their numbers)
    """

    def _rule(self, teacher: Teacher) -> Projection:
        return Projection()
