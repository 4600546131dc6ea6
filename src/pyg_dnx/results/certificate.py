r"""What an explanation is worth, as far as the surrogate can tell: numbers, a verdict, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyg_dnx.distill.distill import Distilled, Trust
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Change

VERDICTS = ('trustworthy', 'doubtful', 'not explained by this surrogate')
TRUSTWORTHY, DOUBTFUL, NOT_EXPLAINED = range(3)
DEFAULT_DOUBT = 0.2


@dataclass(frozen=True)
class Certificate:
    r"""What explanations under a mask are worth, at each explained node. Printed, it is a sentence, or a table of many.

    Attributes:
        index (Tensor): The explained nodes [B].
        verdict (Tensor): 0 for trustworthy, 1 for doubtful, 2 for not explained by this surrogate, [B].
        surrogate_agreement (Tensor): Whether the surrogate predicts the model's class, [B].
        distillation_error (Tensor): The distance between its class probabilities (or outputs) and the model's, [B].
        bias_decides (Tensor): Whether its class comes from the bias, and not from nodes, [B].
        bias_evidence (Tensor): The evidence for the model's class that is in the bias, and in no node, [B]; for
            regression, the size of the bias.
        mask_bound (Tensor): Half the change of its logits under the mask, which its probabilities can't exceed, [B]; if
            it was distilled on masks, the change of these. For ProbeDnX no bound, but what the mask takes from the sum
            of scores.
        expected_unfaithfulness (Tensor): How far the mask moves its probabilities, plus twice the distillation error:
            the unfaithfulness to the model if the surrogate errs under the mask as it does without, [B]. For ProbeDnX,
            plus that error once, as it was made under masks.
        doubt (float): The expected unfaithfulness above which an explanation is doubtful.
        num_hops (int): The surrogate's number of hops.
        ridge (float): Its ridge.
        probe_r2 (Tensor, optional): For ProbeDnX, the share of the variance of answers that is foretold, [B]. What
            stands for the surrogate there is the local fit, which agrees if this is positive.
    """

    index: Tensor
    verdict: Tensor
    surrogate_agreement: Tensor
    distillation_error: Tensor
    bias_decides: Tensor
    bias_evidence: Tensor
    mask_bound: Tensor
    expected_unfaithfulness: Tensor
    doubt: float
    num_hops: int
    ridge: float
    probe_r2: Tensor | None = None

    def at(self, places: Tensor) -> Certificate:
        r"""The same for some of the explained nodes."""
        size = self.index.size(0)
        rows: dict[str, Any] = {
            name: value[places]
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == size
        }
        return replace(self, **rows)

    def __str__(self) -> str:
        if self.index.numel() == 1:
            return self.sentence(0)
        share = torch.bincount(self.verdict, minlength=len(VERDICTS)).double() / max(1, self.index.numel())
        rows = [('explained nodes', f'{self.index.numel():,}')]
        rows += [(name, f'{value:.1%}') for name, value in zip(VERDICTS, share.tolist(), strict=True)]
        rows.append(('expected unfaithfulness', f'{float(self.expected_unfaithfulness.median()):.3f} (median)'))
        return '\n'.join(f'{name:<32} {value}' for name, value in rows)

    def sentence(self, b: int) -> str:
        r"""The verdict on explanation ``b``, why, and what to do about it."""
        expected = f'{float(self.expected_unfaithfulness[b]):.2g}'
        remedy = (
            f"try another 'num_hops' (got {self.num_hops}), 'auto' among them, a lower 'ridge' (got {self.ridge:g}), "
            f'or ProbeDnX'
        )
        if self.probe_r2 is not None:
            return self._sentence_on_probes(b, expected, float(self.probe_r2[b]))
        if self.verdict[b] == NOT_EXPLAINED:
            return f'Not explained by this surrogate, which disagrees with the model: {remedy}.'
        if self.verdict[b] == TRUSTWORTHY:
            return f'Trustworthy: the surrogate agrees with the model, and the expected unfaithfulness is {expected}.'
        if self.bias_decides[b]:
            return (
                f'Doubtful: the class comes from the bias ({float(self.bias_evidence[b]):+.2g}), which is in no node: '
                f"measure the explanation with 'check', and see what speaks for the class with score='target'."
            )
        return (
            f'Doubtful: the expected unfaithfulness is {expected}, more than {self.doubt:.2g}: {remedy}; '
            f"or measure it with 'check'."
        )

    def _sentence_on_probes(self, b: int, expected: str, r2: float) -> str:
        foretold = f'R² of {r2:.2g}'
        if self.verdict[b] == NOT_EXPLAINED:
            return (
                f"Not explained by these probes, which don't foretell one another ({foretold}): pass more "
                f"'num_probes', or measure the explanation with 'check'."
            )
        if self.verdict[b] == TRUSTWORTHY:
            return (
                f'Trustworthy as far as probes tell, which foretell one another ({foretold}): the expected '
                f"unfaithfulness is {expected}. To be sure, measure it with 'check'."
            )
        if self.bias_decides[b]:
            return (
                f'Doubtful: on balance no node speaks for it, as the model says it of blank features, too '
                f"({float(self.bias_evidence[b]):+.2g}): measure the explanation with 'check'."
            )
        return (
            f'Doubtful: the expected unfaithfulness is {expected}, more than {self.doubt:.2g} ({foretold}): pass more '
            f"'num_probes', or measure it with 'check'."
        )


def judge(distilled: Distilled, question: Question, trust: Trust, change: Change, doubt: float) -> Certificate:
    r"""Judges explanations by what their masks leave.

    Args:
        distilled: The distilled model.
        question: The explained outputs.
        trust: What is known of what stands for the model there.
        change: How far the masks move that.
        doubt: The expected unfaithfulness above which an explanation is doubtful, in the unit of ``distilled``.
    """
    doubt *= distilled.unit
    is_weak = trust.probe_r2 is None and distilled.surrogate.report.weakness is not None
    is_doubtful = (change.expected > doubt) | trust.bias_decides | is_weak
    return Certificate(
        index=question.outputs,
        verdict=torch.where(trust.surrogate_agreement, is_doubtful.long(), NOT_EXPLAINED),
        surrogate_agreement=trust.surrogate_agreement,
        distillation_error=trust.distillation_error,
        bias_decides=trust.bias_decides,
        bias_evidence=change.in_bias,
        mask_bound=change.bound,
        expected_unfaithfulness=change.expected,
        doubt=doubt,
        num_hops=distilled.surrogate.num_hops,
        ridge=distilled.surrogate.report.ridge,
        probe_r2=trust.probe_r2,
    )
