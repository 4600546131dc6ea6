r"""What an explanation is worth: numbers, a verdict, and a sentence, by asking the model or else by its surrogate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from pyg_dnx.distill.distill import Distilled, Trust
from pyg_dnx.results.measured import DOUBTFUL, NOT_EXPLAINED, TRUSTWORTHY, VERDICTS, Measured
from pyg_dnx.scores.question import Question
from pyg_dnx.scores.rules import Change

DEFAULT_DOUBT = 0.2
NAMES = {'keeps': 'keeping preserves the prediction', 'changes': 'removing changes it'}


@dataclass(frozen=True, eq=False)
class Certificate:
    r"""What explanations under a mask are worth, at each explained output. Printed, it is a sentence, or a table.

    Attributes:
        index (Tensor): The explained outputs [B].
        verdict (Tensor): 0 for trustworthy, 1 for doubtful, 2 for not explained, [B]: as measured, else as estimated.
        measured (Measured, optional): What the model answered; ``None`` if it was not asked. What follows is what is
            known of an algorithm of this package without asking.
        estimate (Tensor): The verdict by the surrogate alone, [B].
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
        doubt (float): The expected unfaithfulness above which the estimate is doubtful.
        num_hops (int): The surrogate's number of hops.
        ridge (float): Its ridge.
        probe_r2 (Tensor, optional): For ProbeDnX, R² of the local fit, each pair of probes predicted from the others,
            [B]. What stands for the surrogate there is the local fit, which agrees if this is positive.
        weakness (float, optional): Of links, R² of the surrogate on held-out pairs, where it is below 0.3.
        is_random (bool): Whether the model, asked once more, answered otherwise.
    """

    index: Tensor
    measured: Measured | None = None
    estimate: Tensor | None = None
    surrogate_agreement: Tensor | None = None
    distillation_error: Tensor | None = None
    bias_decides: Tensor | None = None
    bias_evidence: Tensor | None = None
    mask_bound: Tensor | None = None
    expected_unfaithfulness: Tensor | None = None
    doubt: float | None = None
    num_hops: int | None = None
    ridge: float | None = None
    probe_r2: Tensor | None = None
    weakness: float | None = None
    is_random: bool = False

    @property
    def verdict(self) -> Tensor:
        return cast(Tensor, self.estimate) if self.measured is None else self.measured.verdict

    def at(self, places: Tensor) -> Certificate:
        r"""The same for some of the explained nodes."""
        size = self.index.size(0)
        rows: dict[str, Any] = {
            name: value[places]
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == size
        }
        return replace(self, **rows, measured=None if self.measured is None else self.measured.at(places))

    def to_dict(self) -> dict[str, Any]:
        r"""What it holds, by name."""
        return {**vars(self), 'measured': None if self.measured is None else self.measured.to_dict()}

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Certificate:
        content = {{'verdict': 'estimate'}.get(name, name): value for name, value in content.items()}  # of older files
        measured = content.pop('measured', None)
        return Certificate(**content, measured=measured and Measured.from_dict(measured))

    def __str__(self) -> str:
        if self.index.numel() == 1:
            return self.sentence(0)
        share = torch.bincount(self.verdict, minlength=len(VERDICTS)).double() / max(1, self.index.numel())
        how = ' (estimated)' if self.measured is None else ''
        rows = [('explained outputs', f'{self.index.numel():,}')]
        rows += [(f'{name}{how}', f'{value:.1%}') for name, value in zip(VERDICTS, share.tolist(), strict=True)]
        if self.measured is None and self.expected_unfaithfulness is not None:
            rows.append(('expected unfaithfulness', f'{float(self.expected_unfaithfulness.median()):.3f} (median)'))
        elif self.measured is not None and self.measured.is_random:
            rows.append(('model', 'answers at random'))
        elif self.measured is not None:
            for name in ('keeps', 'changes'):
                rows.append((NAMES[name], f'{float(getattr(self.measured, name).double().mean()):.1%}'))
        return '\n'.join(f'{name:<32} {value}' for name, value in rows)

    def sentence(self, b: int) -> str:
        r"""The verdict on explanation ``b``, what was seen, and what to do about it."""
        if self.measured is not None:
            return self.measured.sentence(b)
        verdict, known = int(self.verdict[b]), {name: value[b] for name, value in vars(self).items() if _is_row(value)}
        stands = 'the surrogate' if self.probe_r2 is None else f'the local fit (R² {float(known["probe_r2"]):.2g})'
        if self.is_random:
            start = VERDICTS[verdict].capitalize()
            return f'{start}: the model answers at random: make it deterministic in evaluation mode.'
        if verdict == NOT_EXPLAINED:
            why = f'{stands} disagrees with the model'
        elif verdict == DOUBTFUL and self.weakness is not None:
            why = f"the surrogate predicts little of the model's answers about held-out pairs (R² {self.weakness:.2f})"
        elif verdict == DOUBTFUL and bool(known['bias_decides']):
            evidence = f'({float(known["bias_evidence"]):+.2g})'
            why = f'the class comes from the bias {evidence}, which is in no node'
            if self.probe_r2 is not None:
                why = f'the model predicts this class even with all features blanked {evidence}'
        else:
            why = f'{stands} agrees with the model, and ' if verdict == TRUSTWORTHY else ''
            why += f'the expected unfaithfulness is {float(known["expected_unfaithfulness"]):.2g}'
            why += f', more than {self.doubt:.2g}' if verdict == DOUBTFUL else ''
        return f"{VERDICTS[verdict].capitalize()} (estimated): {why}. Measure it with 'certify'."


def _is_row(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


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
    weakness = distilled.surrogate.report.weakness if trust.probe_r2 is None else None
    is_doubtful = (change.expected > doubt) | trust.bias_decides | (weakness is not None)
    return Certificate(
        index=question.outputs,
        estimate=torch.where(trust.surrogate_agreement & (not distilled.is_random), is_doubtful.long(), NOT_EXPLAINED),
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
        weakness=weakness,
        is_random=distilled.is_random,
    )
