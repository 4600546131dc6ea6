r"""What is said of explanations: a sentence or a table, and warnings about what is doubtful."""

import re
import warnings

import pytest
import torch
from certificate_case import judged
from models import Ring, explainer, graph

from pyg_dnx import Certificate, FastDnX, SurrogateWarning
from pyg_dnx.distill.distill import Trust
from pyg_dnx.results.measured import VERDICTS
from pyg_dnx.results.warnings import warn_if_doubtful


def written(verdict, bias_decides=(False,), expected=(0.25,)):
    r"""A certificate with a verdict on each of some nodes."""
    size = len(verdict)
    return Certificate(
        index=torch.arange(4, 4 + size),
        estimate=torch.tensor(verdict),
        surrogate_agreement=torch.tensor(verdict) < 2,
        distillation_error=torch.full((size,), 0.07),
        bias_decides=torch.tensor(bias_decides).expand(size),
        bias_evidence=torch.full((size,), -0.73),
        mask_bound=torch.full((size,), 0.31),
        expected_unfaithfulness=torch.tensor(expected).expand(size),
        doubt=0.15,
        num_hops=3,
        ridge=0.01,
    )


LAST = r"Measure it with 'certify'\."
SENTENCES = [
    (0, False, r'Trustworthy \(estimated\): the surrogate agrees with the model, and the expected .* is 0\.25\. '),
    (1, False, r'Doubtful \(estimated\): the expected unfaithfulness is 0\.25, more than 0\.15\. '),
    (1, True, r'Doubtful \(estimated\): the class comes from the bias \(-0\.73\), which is in no node\. '),
    (2, False, r'Not explained \(estimated\): the surrogate disagrees with the model\. '),
    (2, True, r'Not explained \(estimated\): the surrogate disagrees with the model\. '),
]


@pytest.mark.parametrize(('verdict', 'bias_decides', 'sentence'), SENTENCES)
def test_one_explanation_is_a_sentence(verdict, bias_decides, sentence):
    assert re.fullmatch(sentence + LAST, str(written([verdict], (bias_decides,))))


def test_several_explanations_are_a_table_and_have_a_sentence_each():
    verdicts, by_bias = [2, 1, 0, 1, 1, 0, 1, 0, 1, 1], [False, True] * 5
    found = written(verdicts, by_bias, [0.1 * b for b in range(10)])
    for b, verdict in enumerate(verdicts):
        assert found.sentence(b).startswith(VERDICTS[verdict].capitalize())
        assert ('bias' in found.sentence(b)) == (verdict == 1 and by_bias[b])
    assert '0.4' in found.sentence(4)
    lines = dict(re.split(r' {2,}| (?=\d)', line) for line in str(found).splitlines())
    assert lines.pop('explained outputs') == '10'
    assert lines.pop('expected unfaithfulness') == '0.400 (median)'
    assert lines == {
        f'{name} (estimated)': share for name, share in zip(VERDICTS, ('30.0%', '60.0%', '10.0%'), strict=True)
    }
    one_kind = str(written([1, 1])).splitlines()
    assert [line.split()[-1] for line in one_kind[1:4]] == ['0.0%', '100.0%', '0.0%']


def ring(explanation_type='model', index=None, **options):
    r"""The warnings about a model that no linear surrogate follows, at some of eight nodes.

    The surrogate disagrees at nodes 2 to 5, errs by more than 0.1 at all, and 0 to 3 are decided by its bias.
    """
    explain = explainer(Ring(), FastDnX(num_hops=0, **options), explanation_type=explanation_type)
    given = {'target': torch.arange(8) % 2} if explanation_type == 'phenomenon' else {}
    x, edge_index = torch.linspace(-1, 1, 8)[:, None], graph()[1]
    texts = {}
    for name in ['one', 'batch']:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter('always')
            if name == 'one':
                explain(x, edge_index, index=index, **given)
            else:
                explain.algorithm.explain_nodes(explain.model, x, edge_index, index=index, **given)
        found = [warning for warning in found if issubclass(warning.category, SurrogateWarning)]
        assert all(warning.filename == __file__ for warning in found)
        texts[name] = [str(warning.message) for warning in found]
    assert texts['one'] == texts['batch']
    return texts['one']


REMEDY = r"\. Ask the model what an explanation is worth, with 'pyg_dnx\.certify'\."
DISAGREES = rf'The surrogate disagrees with the model at %s, so .* \(agreement on the whole graph: 50\.0%%\){REMEDY}'
ERRS = rf"Explanations are doubtful where 'distillation_error' is above 0\.1{REMEDY}"
BIAS = rf"Explanations are doubtful where 'bias_decides': .* its bias, .*{REMEDY}"


@pytest.mark.parametrize(
    ('index', 'options', 'expected'),
    [
        (2, {}, DISAGREES % 'node 2'),
        (2, {'doubt': 4.0, 'score': 'target'}, DISAGREES % 'node 2'),
        (None, {}, DISAGREES % '4 of 8 nodes'),
        (torch.tensor([0, 5, 7]), {}, DISAGREES % '1 of 3 nodes'),
        (7, {}, ERRS),
        (0, {}, ERRS),  # decided by its bias, too
        (0, {'score': 'target'}, ERRS),
        (torch.tensor([0, 1, 6, 7]), {'doubt': 0.2}, ERRS),
        (7, {'doubt': 4.0, 'score': 'target'}, None),
        (0, {'doubt': 4.0}, BIAS),
        (torch.tensor([0, 6, 7]), {'doubt': 4.0}, BIAS),
        (0, {'doubt': 4.0, 'score': 'target'}, None),
        (0, {'doubt': 4.0, 'contrast': 'runner_up'}, None),
        (0, {'doubt': 4.0, 'explanation_type': 'phenomenon'}, None),
    ],
)
def test_one_warning_says_why(index, options, expected):
    texts = ring(index=index, **options)
    assert len(texts) == (expected is not None)
    assert all(re.fullmatch(expected, text) for text in texts)


@pytest.mark.parametrize(('nodes', 'doubt'), [((6, 7), 0.2), ((0, 1), 4.0)])
def test_doubt_about_many_nodes_is_shown_once(nodes, doubt):
    assert ring(index=nodes[0], doubt=doubt) == ring(index=nodes[1], doubt=doubt)
    explain = explainer(Ring(), FastDnX(num_hops=0, doubt=doubt))
    x, edge_index = torch.linspace(-1, 1, 8)[:, None], graph()[1]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('default')
        for node in nodes * 2:
            explain(x, edge_index, index=node)
    assert [warning.category for warning in found if issubclass(warning.category, UserWarning)] == [SurrogateWarning]


@pytest.mark.parametrize('mode', ['multiclass_classification', 'regression'])
@pytest.mark.parametrize('reason', ['disagrees', "'distillation_error'", "'bias_decides'"])
@pytest.mark.parametrize(('count', 'warns'), [(0, False), (1, False), (2, True)])
def test_more_than_a_tenth_must_be_doubtful(mode, reason, count, warns):
    distilled, flags = judged(mode, scale=50.0)[0], torch.arange(10) < count
    assert (distilled.unit > 10) == (mode == 'regression')
    trust = Trust(
        surrogate_agreement=~flags if reason == 'disagrees' else torch.ones(10, dtype=torch.bool),
        distillation_error=(0.09 + 0.02 * flags * (reason == "'distillation_error'")) * distilled.unit,
        bias_decides=flags if reason == "'bias_decides'" else torch.zeros(10, dtype=torch.bool),
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        warn_if_doubtful(trust, distilled, torch.arange(10), 0.2, False)
    assert len(found) == warns
    assert all(reason in str(warning.message) for warning in found)
    if warns and reason == "'distillation_error'":
        assert f'above {0.1 * distilled.unit:g}' in str(found[0].message)


class Drawn(torch.nn.Module):
    r"""A model that answers at random, and that no surrogate follows."""

    def forward(self, x, edge_index):
        return torch.rand(x.size(0), 3) * 20


def test_a_call_warns_once():
    explain = explainer(Drawn(), FastDnX(num_hops=1))
    for call in (explain, lambda *inputs, index: explain.algorithm.explain_nodes(explain.model, *inputs, index=index)):
        explain.algorithm.cache.clear()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter('always')
            call(*graph(), index=None)
        assert len(found) == 1
        assert found[0].filename == __file__
