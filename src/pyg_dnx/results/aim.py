r"""What an answer of the model is worth: whether it is still the explained prediction, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch_geometric.explain.config import ModelConfig, ModelMode


@dataclass(frozen=True, eq=False)
class Aim:
    r"""The predictions that are explained.

    Args:
        before: What the model says of the explained outputs, [B, C].
        classes: The explained class of each, [B]; ``None`` for regression.
        unit: For regression, the distance from ``before`` up to which an output counts as preserved.
    """

    before: Tensor
    classes: Tensor | None
    unit: float = 1.0

    @staticmethod
    def of(answers: Tensor, outputs: Tensor, config: ModelConfig, target: Any = None) -> Aim:
        r"""The aim at some outputs [B], given all answers [O, C], and the targets [O] if the user gave them."""
        before = answers[outputs].double()
        if config.mode == ModelMode.regression:
            spread = float(answers.double().var(dim=0, correction=0).sum().sqrt())
            return Aim(before, None, spread or float(before.norm(dim=1).mean()) or 1.0)
        classes = before.argmax(dim=1) if target is None else target.to(outputs.device).view(-1)[outputs].long()
        return Aim(before, classes)

    def at(self, places: Any) -> Aim:
        r"""The same at some of the outputs."""
        classes = None if self.classes is None else self.classes[places]
        return replace(self, before=self.before[places], classes=classes)

    def holds(self, answers: Tensor) -> Tensor:
        r"""Whether each answer [B, ..., C] is still the explained prediction, [B, ...]."""
        if self.classes is None:
            return self.worth(answers) >= -1.0
        return answers.argmax(dim=-1) == self._spread(self.classes, answers)[..., 0]

    def worth(self, answers: Tensor) -> Tensor:
        r"""The class's probability, or minus the distance from the output in units, for each answer, [B, ...]."""
        if self.classes is None:
            return -(answers - self._spread(self.before, answers)).norm(dim=-1) / self.unit
        return answers.gather(-1, self._spread(self.classes, answers).expand(*answers.shape[:-1], 1))[..., 0]

    def _spread(self, values: Tensor, answers: Tensor) -> Tensor:
        return values.view(values.size(0), *[1] * (answers.dim() - 2), -1)
