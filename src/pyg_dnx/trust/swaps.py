r"""The search for a better mask of the same size: swaps of what it keeps for what it leaves out, tried on the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_MOVES = (2, 3, 4, 6, 8)  # swaps that are tried at once, where single ones have been tried before
NUM_CANDIDATES = 32  # on each side, of which pairs are made
RIDGE = 0.1  # of the effects that are fitted to what swaps did
ROUNDING = 1e-6  # of probabilities


class Outcome(NamedTuple):
    r"""What the model answers with what masks keep and without it, [M] each."""

    keeps: Tensor  # whether what is kept preserves the prediction
    changes: Tensor  # whether the prediction changes without it
    gap: Tensor  # the probability of the class with what is kept, minus that without it

    def at(self, place: int | slice) -> Outcome:
        return Outcome(*(value[place] for value in self))

    def is_better_than(self, other: Outcome) -> Tensor:
        r"""Whether each is better than another one, [M]: it loses neither of the two, and gains one, or in the gap."""
        count, before = (one.keeps.long() + one.changes.long() for one in (self, other))
        loses = (self.keeps < other.keeps) | (self.changes < other.changes)
        return ~loses & ((count > before) | ((count == before) & (self.gap > other.gap + ROUNDING)))

    def best(self, among: Tensor) -> int:
        r"""Which of those ``among`` [M] is best."""
        count = self.keeps.double() + self.changes.double()
        return int((2.0 * count + self.gap).masked_fill(~among, -torch.inf).argmax())


@dataclass(eq=False)
class Search:
    r"""One mask on its way.

    Args:
        owner: The explanation that it is of.
        score: What orders proposals, [n]: high is likely in.
        inside: What the mask keeps, [n].
        fixed: What must stay, [n].
    """

    owner: int
    score: Tensor
    inside: Tensor
    fixed: Tensor
    start: Outcome | None = None
    now: Outcome | None = None
    num_masks: int = 0
    tried: list[Tensor] = field(default_factory=list)
    gaps: list[Tensor] = field(default_factory=list)
    known: set[bytes] = field(default_factory=set)

    def propose(self, count: int) -> Tensor:
        r"""At most ``count`` masks that have not been tried, [p, n]: first the one at the start."""
        if self.now is None:
            return self._new([self.inside], count)
        effect = self._effects(self.now)
        weakest, strongest = self._order(effect)
        masks: list[Tensor] = []
        if self.num_masks > 1:
            sizes = (size for size in LARGEST_MOVES if size <= min(weakest.numel(), strongest.numel()))
            masks = [self._swapped(weakest[:size], strongest[:size]) for size in sizes]
        out, into = weakest[:NUM_CANDIDATES], strongest[:NUM_CANDIDATES]
        if out.numel() == 0 or into.numel() == 0:
            return self.inside.new_zeros(0, self.inside.numel())
        if self.num_masks == 1:  # each at least once
            pairs = [(a % out.numel(), a % into.numel()) for a in range(max(out.numel(), into.numel()))]
        else:
            pairs = []
        gain = effect[into][None] - effect[out][:, None]
        places = torch.arange(max(out.numel(), into.numel()), device=out.device)
        rank = places[: out.numel(), None] + places[: into.numel()]
        order = rank.flatten().argsort(stable=True)
        order = order[gain.flatten()[order].argsort(descending=True, stable=True)]
        pairs += [(place // into.numel(), place % into.numel()) for place in order.tolist()]
        return self._new(masks + [self._swapped(out[a : a + 1], into[b : b + 1]) for a, b in pairs], count)

    def take(self, masks: Tensor, found: Outcome) -> bool:
        r"""Takes the best of some masks, if it is better than the present one, and says whether it is."""
        self.num_masks += masks.size(0)
        self.tried += list(masks)
        self.gaps += list(found.gap)
        if self.now is None:
            self.start = self.now = found.at(0)
            return True
        is_better = found.is_better_than(self.now)
        if not bool(is_better.any()):
            return False
        best = found.best(is_better)
        self.inside, self.now = masks[best], found.at(best)
        return True

    def _effects(self, now: Outcome) -> Tensor:
        r"""What each unit adds to the gap, as far as swaps have shown, [n]: of least squares with a ridge."""
        change = torch.stack(self.tried).double() - self.inside.double()
        used = (change != 0).any(dim=0)
        change = change[:, used]
        gap = torch.stack(self.gaps) - now.gap
        gram = change @ change.T + RIDGE * torch.eye(change.size(0), dtype=change.dtype, device=change.device)
        effect = torch.zeros_like(self.score, dtype=torch.float64)
        effect[used] = change.T @ torch.linalg.solve(gram, gap)
        return effect

    def _order(self, effect: Tensor) -> tuple[Tensor, Tensor]:
        r"""What may leave the mask and what may enter it, the likeliest first: by effects, then by scores."""
        order = self.score.argsort(descending=True, stable=True)
        order = order[effect[order].argsort(descending=True, stable=True)]
        return order[(self.inside & ~self.fixed)[order]].flip(0), order[~self.inside[order]]

    def _swapped(self, out: Tensor, into: Tensor) -> Tensor:
        mask = self.inside.clone()
        mask[out], mask[into] = False, True
        return mask

    def _new(self, masks: list[Tensor], count: int) -> Tensor:
        found: list[Tensor] = []
        for mask in masks:
            key = mask.cpu().numpy().tobytes()
            if key not in self.known and len(found) < count:
                self.known.add(key)
                found.append(mask)
        return torch.stack(found) if found else self.inside.new_zeros(0, self.inside.numel())


def improve(
    searches: list[Search], ask: Callable[[list[Search], list[Tensor]], list[Outcome]], num_masks: int, width: int
) -> None:
    r"""Improves masks, all in the same rounds, each until a round finds nothing better for it.

    Args:
        searches: The masks.
        ask: What the model answers, for some of the searches, under some masks [p, n] of each.
        num_masks: The most masks that are tried for each.
        width: The most of them in a round.
    """
    while searches:
        masks = [search.propose(min(width, num_masks - search.num_masks)) for search in searches]
        asked = [(search, each) for search, each in zip(searches, masks, strict=True) if each.size(0) > 0]
        if not asked:
            return
        found = ask([search for search, _ in asked], [each for _, each in asked])
        searches = [search for (search, each), outcome in zip(asked, found, strict=True) if search.take(each, outcome)]
