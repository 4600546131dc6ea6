r"""Features that are whole numbers name categories, as atoms by number do: one column for each category."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Categories:
    r"""The categories of each feature.

    Args:
        values: The distinct values of each feature, ascending. Others have no column that is 1.
    """

    values: tuple[Tensor, ...]

    @staticmethod
    def of(x: Tensor) -> Categories | None:
        r"""The categories in features [N, F]; ``None`` for numbers that are measured."""
        return None if x.dtype.is_floating_point else Categories(tuple(column.unique() for column in x.T))

    @property
    def sizes(self) -> list[int]:
        r"""The number of categories of each feature, [F]."""
        return [value.numel() for value in self.values]

    def encode(self, x: Tensor) -> Tensor:
        r"""One column for each category, [N, K], of features [N, F]."""
        parts = [column[:, None] == value.to(x.device) for column, value in zip(x.T, self.values, strict=True)]
        return torch.cat(parts, dim=1).to(torch.get_default_dtype())

    def expand(self, mask: Tensor) -> Tensor:
        r"""A mask of categories [n, K], of one of features [n, F]; masks of nodes [n, 1] stay as they are."""
        if mask.size(1) != len(self.values):
            return mask
        return mask.repeat_interleave(torch.tensor(self.sizes, device=mask.device), dim=1)

    def collapse(self, scores: Tensor) -> Tensor:
        r"""The scores of features [..., F], of those of categories [..., K]."""
        return torch.stack([part.sum(dim=-1) for part in scores.split(self.sizes, dim=-1)], dim=-1)

    def to(self, target: Any) -> Categories:
        r"""The same on another device."""
        return Categories(tuple(value.to(target) for value in self.values))
