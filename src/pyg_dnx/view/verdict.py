r"""What a page says of how far to trust an explanation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain import Explanation

from pyg_dnx.results.certificate import DOUBTFUL, NOT_EXPLAINED, Certificate

NAMES = ('Trustworthy', 'Doubtful', 'Not explained')
NONE, MIXED = -1, -2  # beside the codes of verdicts
NUMBERS = {
    'surrogate_agreement': 'the surrogate agrees with the model',
    'distillation_error': 'distillation error',
    'bias_decides': 'the bias decides',
    'bias_evidence': 'evidence in the bias',
    'probe_r2': 'R² of probes',
    'expected_unfaithfulness': 'expected unfaithfulness',
    'mask_bound': 'mask bound',
}
UNKNOWN = (
    "no verdict is known, as this explanation doesn't say how far it speaks for the model. Measure it on the model "
    'with pyg_dnx.check.'
)
UNJUDGED = (
    'the surrogate agrees with the model here, but what the masks leave was not judged. For a verdict, pass '
    'certificate=certify(explainer, explanation).'
)


def verdict_on(explanation: Explanation, certificate: Certificate | None, nodes: list[int]) -> dict[str, Any]:
    r"""A verdict's code (negative if there is none), name, sentence and numbers, on an explanation of ``nodes``."""
    if certificate is None:
        return _from_explanation(explanation)
    index = certificate.index.detach().cpu()
    is_meant = torch.isin(index, torch.tensor(nodes, device='cpu')) if nodes else torch.ones_like(index)
    rows = is_meant.nonzero().view(-1)
    if rows.numel() == 0:
        raise ValueError(
            f"'certificate' must be of the explained nodes {nodes[:5]} (got one of {index[:5].tolist()}): pass "
            f'certify(explainer, explanation)'
        )
    verdicts = certificate.verdict.detach().cpu()[rows]
    worst = int(rows[verdicts.argmax()])
    code, sentence = int(verdicts.max()), certificate.sentence(worst)
    sentence = sentence.removeprefix(f'{NAMES[code]}: ')
    if rows.numel() > 1:
        counts = torch.bincount(verdicts, minlength=len(NAMES)).tolist()
        tally = ', '.join(f'{count:,} {name.lower()}' for count, name in zip(counts, NAMES, strict=True) if count > 0)
        sentence = (
            f'{rows.numel():,} nodes are explained together: {tally}. The worst, node {int(index[worst])}: {sentence}'
        )
        code = code if max(counts) == rows.numel() else MIXED
    numbers = _numbers({name: getattr(certificate, name) for name in NUMBERS}, rows)
    numbers.append(('doubtful above', f'{certificate.doubt:.3g}'))
    return _verdict(code, sentence, numbers)


def _from_explanation(explanation: Explanation) -> dict[str, Any]:
    r"""What can be said without a certificate: where the surrogate disagrees or the bias decides, no mask helps."""
    known = {name: explanation.get(name) for name in NUMBERS}
    agreement, bias_decides = known['surrogate_agreement'], known['bias_decides']
    if agreement is None or bias_decides is None:
        return _verdict(NONE, UNKNOWN, [])
    numbers = _numbers(known, torch.arange(agreement.numel(), device='cpu'))
    if not bool(agreement.all()):
        code = MIXED if bool(agreement.any()) else NOT_EXPLAINED
        return _verdict(code, f'what stands for the model disagrees with it at {_count(~agreement)}.', numbers)
    if bool(bias_decides.any()):
        code = DOUBTFUL if bool(bias_decides.all()) else MIXED
        return _verdict(code, f'the bias decides, which is in no node, at {_count(bias_decides)}.', numbers)
    return _verdict(NONE, UNJUDGED, numbers)


def _count(flags: Tensor) -> str:
    return 'this node' if flags.numel() == 1 else f'{int(flags.sum()):,} of {flags.numel():,} nodes'


def _numbers(values: dict[str, Tensor | None], rows: Tensor) -> list[tuple[str, str]]:
    found = {name: value.detach().cpu()[rows] for name, value in values.items() if value is not None}
    return [(NUMBERS[name], _summary(value)) for name, value in found.items()]


def _summary(value: Tensor) -> str:
    if value.dtype == torch.bool:
        return ('yes' if bool(value) else 'no') if value.numel() == 1 else f'{int(value.sum()):,} of {value.numel():,}'
    median = f'{float(value.double().median()):.3g}'.replace('-', '−')
    return median + (' (median)' if value.numel() > 1 else '')


def _verdict(code: int, sentence: str, numbers: list[tuple[str, str]]) -> dict[str, Any]:
    name = {NONE: 'No verdict', MIXED: 'Mixed'}.get(code) or NAMES[code]
    return {'code': code, 'name': name, 'sentence': sentence[:1].upper() + sentence[1:], 'numbers': numbers}
