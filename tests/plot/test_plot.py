r"""Pictures of all kinds: contrast, files, what is not installed, and that nothing of the user's changes."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from models import Teacher, explainer, graph
from plot_case import CASES, bush, directed, star
from torch_geometric.explain import Explanation

from pyg_dnx import FastDnX, files, plot
from pyg_dnx.plot import theme as themes

matplotlib = pytest.importorskip('matplotlib')
pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')


@pytest.mark.parametrize('theme', themes.THEMES)
def test_contrast(theme):
    colors = themes.THEMES[theme]
    assert themes.contrast('white', 'black') == pytest.approx(21.0)
    assert themes.contrast('#777777', 'white') == pytest.approx(4.48, abs=0.01)
    assert themes.contrast(colors.text, colors.page) > 12
    assert themes.contrast(colors.muted, colors.page) > 4.5
    for color in (colors.line, colors.toward, colors.away, colors.unsigned):
        assert themes.contrast(color, colors.page) > 3
    for is_signed in (True, False):
        for share in np.linspace(0.0, 1.0, 50):
            fill = colors.colors(is_signed)(share)
            assert themes.contrast(colors.ink(fill), fill) > 3.9


def test_nothing_of_the_users_changes():
    import matplotlib.pyplot as plt

    explanation = star(4)
    before = dict(matplotlib.rcParams), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    score = explanation.node_score.clone()
    numbers = plt.get_fignums()
    for figure in (
        plot.neighborhood(explanation, theme='dark'),
        plot.neighborhood(CASES['all']),
        plot.features(Explanation(feature_score=torch.ones(3)), theme='dark'),
    ):
        assert isinstance(figure, matplotlib.figure.Figure)
    assert (dict(matplotlib.rcParams), np.random.get_state()[1].tolist()) == before[:2]  # noqa: NPY002
    assert torch.get_rng_state().equal(before[2])
    assert plt.get_fignums() == numbers
    assert explanation.node_score.equal(score)


def test_pictures_are_the_same_each_time(tmp_path):
    for name in ('one', 'two'):
        plot.neighborhood(bush(60), max_nodes=60, path=tmp_path / f'{name}.png')
        torch.rand(3)
    first, second = ((tmp_path / f'{name}.png').read_bytes() for name in ('one', 'two'))
    assert first.startswith(b'\x89PNG')
    assert first == second


def test_a_notebook_shows_a_picture_even_without_pyplot():
    assert plot.neighborhood(star(4))._repr_png_().startswith(b'\x89PNG')


@pytest.mark.parametrize('ending', ['png', 'pdf', 'svg'])
def test_pictures_are_saved(ending, tmp_path):
    plot.neighborhood(directed(), path=tmp_path / f'a.{ending}')
    plot.features(Explanation(feature_score=torch.ones(3)), path=str(tmp_path / f'b.{ending}'))
    assert {path.name for path in tmp_path.iterdir()} == {f'a.{ending}', f'b.{ending}'}
    assert all(path.stat().st_size > 2000 for path in tmp_path.iterdir())


def test_a_full_disk_leaves_the_picture_that_was_there(tmp_path, monkeypatch):
    explanation = Explanation(feature_score=torch.ones(3))
    plot.features(explanation, path=tmp_path / 'kept')  # in matplotlib's own format
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, '_sync', fail)
    with pytest.raises(OSError, match="'path' must be where there is room to write"):
        plot.features(explanation, path=path)
    assert [item.read_bytes() for item in tmp_path.iterdir()] == [before]


def test_matplotlib_is_imported_when_it_is_needed():
    code = "import sys, pyg_dnx; from pyg_dnx import plot; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.parametrize(
    'draw',
    [
        lambda: plot.neighborhood(star(4)),
        lambda: plot.neighborhood(star(4, index=None)),
        lambda: plot.features(Explanation(feature_score=torch.ones(3))),
    ],
)
def test_matplotlib_is_asked_for(draw, monkeypatch):
    for name in ('matplotlib.figure', 'matplotlib.backends.backend_agg'):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pictures need 'matplotlib', which is not installed: pip install matplotlib"):
        draw()


BAD = {
    'theme': (plot.neighborhood, star(4), {'theme': 'pink'}, ValueError, r"'theme' must be .* \(got 'pink'\): "),
    'nodes': (plot.neighborhood, star(4), {'max_nodes': 0}, ValueError, r"'max_nodes' must be .* \(got 0\): "),
    'labels': (plot.neighborhood, star(4), {'node_labels': ['a']}, ValueError, r"'node_labels' must .* \(got 1\): "),
    'features': (plot.features, star(4), {}, ValueError, "'explanation' must say something of features"),
    'top_k': (plot.features, star(4), {'top_k': 0}, ValueError, r"'top_k' must be at least 1 \(got 0\): "),
    'words': (
        plot.features,
        Explanation(feature_score=torch.ones(3)),
        {'labels': ['a']},
        ValueError,
        r"'labels' must have a label for each, 1 among them \(got 1\): ",
    ),
    'NaN': (plot.features, Explanation(feature_score=torch.tensor([torch.nan])), {}, ValueError, 'must be finite'),
    'batch': (plot.batch, star(4), {}, TypeError, r"'explanations' must be .* \(got Explanation\): "),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_input_is_named(name):
    draw, item, options, error, text = BAD[name]
    with pytest.raises(error, match=text):
        draw(item, **options)


def test_default_device_is_not_used():
    x, edge_index = graph()
    explain = explainer(Teacher('gcn').eval(), FastDnX(), node='attributes', edge='object')
    one, several = (explain(x, edge_index, index=index) for index in (1, torch.tensor([1, 2])))
    batch = explain.algorithm.explain_nodes(explain.model, x, edge_index)

    def pixels():
        figures = [plot.neighborhood(one), plot.neighborhood(several), plot.features(one), plot.batch(batch)]
        for figure in figures:
            figure.canvas.draw()
        return [np.asarray(figure.canvas.buffer_rgba()).tobytes() for figure in figures]

    expected = pixels()
    torch.set_default_device('meta')
    try:
        assert pixels() == expected
    finally:
        torch.set_default_device(None)
