r"""What is asked of an explanation: which outputs, and toward what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.explain.config import ModelConfig, ModelMode

from pyg_dnx.distill.distill import Distilled


@dataclass(frozen=True, eq=False)
class Question:
    r"""Some outputs of a model, and the direction in which each is explained.

    Args:
        outputs: The explained outputs [B].
        direction: Directions [B, C] of their targets; ``None`` if an explainer is to take its own.
        target: The target of all outputs, as PyG has it, where the user gave one.
    """

    outputs: Tensor
    direction: Tensor | None = None
    target: Tensor | None = None

    def at(self, places: Tensor | slice) -> Question:
        r"""The same of some of the outputs."""
        direction = None if self.direction is None else self.direction[places]
        return replace(self, outputs=self.outputs[places], direction=direction)

    def distinct(self) -> Question:
        r"""Each output once, ascending."""
        outputs, place = torch.unique(self.outputs, return_inverse=True)
        direction = self.direction
        if direction is not None:
            direction = torch.empty_like(direction[: outputs.numel()]).index_copy_(0, place, direction)
        return replace(self, outputs=outputs, direction=direction)


@dataclass(frozen=True)
class Goal:
    r"""How questions get their directions.

    Args:
        config: What the model returns.
        by_target: Whether the user gives targets (explanations of type ``'phenomenon'``).
        toward_prediction: Whether the model's own prediction is the target otherwise.
        contrast: The class to compare with, ``'runner_up'`` or ``None``.
    """

    config: ModelConfig
    by_target: bool
    toward_prediction: bool
    contrast: int | str | None = None

    @property
    def has_direction(self) -> bool:
        r"""Whether the question has directions; else an explainer takes its own."""
        return self.by_target or self.toward_prediction or self.contrast is not None

    def question(self, distilled: Distilled, outputs: Tensor, target: Any, is_part: bool = False) -> Question:
        r"""The question about some outputs [B], given the target of all of them.

        Where these are part of a larger question, all of their targets may be the class to contrast them with.
        """
        if self.by_target:
            found = target_of(target, outputs, distilled.outputs, self.config)
        elif self.toward_prediction or self.contrast is not None:
            target, found = None, self.predictions(distilled, outputs)
        else:
            return Question(outputs)
        _check_contrast(self.contrast, found, distilled.outputs.size(1), is_part)
        return Question(outputs, self.direction(distilled, outputs, found), target)

    def everywhere(self, distilled: Distilled, target: Tensor | None) -> Tensor:
        r"""The direction [O, C] of each output; anything where there is no target."""
        outputs = torch.arange(distilled.outputs.size(0), device=distilled.outputs.device)
        if target is None:
            found = self.predictions(distilled, outputs)
        else:
            found = target.detach().to(outputs.device).reshape(outputs.numel(), -1)
            if self.config.mode != ModelMode.regression:
                found = found.reshape(-1).long().clamp(0, distilled.outputs.size(1) - 1)
        return self.direction(distilled, outputs, found)

    def predictions(self, distilled: Distilled, outputs: Tensor) -> Tensor:
        r"""What the model predicts: classes [B], or values [B, C]."""
        found = distilled.outputs[outputs]
        return found if self.config.mode == ModelMode.regression else found.argmax(dim=1)

    def direction(self, distilled: Distilled, outputs: Tensor, targets: Tensor) -> Tensor:
        r"""The direction [B, C] of each target.

        - Classification: the zero-sum indicator of the class, so that scores are evidence for it.
        - With ``contrast``: the class minus another, so that scores tell why the one rather than the other.
        - Regression: the target minus the bias.
        """
        evidence = distilled.decomposition.evidence
        if self.config.mode == ModelMode.regression:
            return targets.to(evidence.dtype) - distilled.surrogate.bias
        num_classes = evidence.size(1)
        indicator = F.one_hot(targets, num_classes).to(evidence.dtype)
        if self.contrast is None:
            return indicator - 1.0 / num_classes
        if self.contrast == 'runner_up':
            other = distilled.outputs[outputs].masked_fill(indicator.bool(), -1.0).argmax(dim=1)
        else:
            other = torch.full_like(targets, int(self.contrast))
        return indicator - F.one_hot(other, num_classes)


NOUNS = {  # of each level: what its outputs are of, the numbers of these, and where they are
    'node': ('node', 'node ids', "'x' has"),
    'edge': ('pair', 'numbers of pairs', 'there are'),
    'graph': ('graph', 'graph numbers', "'batch' has"),
}


def outputs_of(value: Any, size: int, device: torch.device, level: str = 'node') -> Tensor:
    r"""Returns the outputs [B] that an ``index`` names, of the ``size`` ones that a task level has."""
    one, ids, where = NOUNS[level]
    if value is None:
        return torch.arange(size, device=device)
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"'index' must be an int, a tensor of ids or a boolean mask (got {value!r}): pass torch.tensor([...])"
            ) from error
    if value.dtype == torch.bool:
        if value.shape != (size,):
            raise ValueError(
                f"'index' must have shape [{size}] as a boolean mask, one entry a {one} (got "
                f'{list(value.shape)}): pass {ids} instead'
            )
        value = value.nonzero()
    elif value.is_floating_point() or value.is_complex():
        raise TypeError(f"'index' must hold {ids} or be a boolean mask (got {value.dtype}): pass index.long()")
    nodes = value.to(device).long().reshape(-1)
    if nodes.numel() == 0:
        raise ValueError(f"'index' must name at least one {one} (got none): pass None to explain all {one}s")
    low, high = [int(nodes)] * 2 if nodes.numel() == 1 else map(int, nodes.aminmax())
    if low < -size or high >= size:
        raise IndexError(
            f"'index' must hold {ids} from {-size} to {size - 1}, as {where} {size} {one}s (got ids from {low} to "
            f'{high}): pass {ids} that are there'
        )
    return nodes if low >= 0 else nodes % size


def target_of(value: Any, nodes: Tensor, outputs: Tensor, config: ModelConfig) -> Tensor:
    r"""Returns the target of each explained node: classes [B], or values [B, C] for regression."""
    num_nodes, num_outputs = outputs.shape
    if not isinstance(value, Tensor) or value.dim() == 0 or value.size(0) != num_nodes:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"'target' must be a tensor with an entry for each of the {num_nodes} nodes (got {got}): explanations of "
            f"type 'phenomenon' need it, so pass what to explain as 'target'"
        )
    value = value.detach().to(nodes.device)[nodes].reshape(nodes.numel(), -1)
    if config.mode == ModelMode.regression:
        if value.size(1) != num_outputs or not bool(value.isfinite().all()):
            raise ValueError(
                f"'target' must be finite and of shape [{num_nodes}, {num_outputs}], as the model's outputs are (got "
                f'{value.size(1)} columns): pass the values to explain'
            )
        return value
    if value.size(1) != 1 or bool((value != value.long()).any()):
        raise ValueError(
            f"'target' must hold one class a node, a whole number (got {value.flatten()[:3].tolist()} … in "
            f'{value.size(1)} columns): pass class labels'
        )
    value = value.long().view(-1)
    if int(value.min()) < 0 or int(value.max()) >= num_outputs:
        raise ValueError(
            f"'target' must hold classes from 0 to {num_outputs - 1} at the explained nodes, as the model has "
            f'{num_outputs} (got classes from {int(value.min())} to {int(value.max())}): explain labelled nodes'
        )
    return value


def _check_contrast(value: int | str | None, classes: Tensor, num_classes: int, is_part: bool) -> None:
    r"""Checks that ``contrast`` is a class of the model, and another one than the target at some explained node."""
    if value == 'runner_up' or value is None:
        return
    if int(value) >= num_classes:
        raise ValueError(
            f"'contrast' must be one of the model's classes, 0 to {num_classes - 1} (got {value}): pass one of them"
        )
    if not is_part and bool(classes.eq(int(value)).all()):
        raise ValueError(f"'contrast' must differ from the target class (got {value} for both): pass another class")
