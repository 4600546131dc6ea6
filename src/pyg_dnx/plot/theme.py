r"""The colours of all pictures, and figures in them. Nothing of matplotlib's own settings is changed."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyg_dnx import files, options

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

DPI = 200  # of saved pictures


@dataclass(frozen=True)
class Theme:
    r"""Colours that colour-blind readers tell apart, too: those of Okabe and Ito, lighter on a dark page."""

    page: str
    text: str
    muted: str  # of text that comes second
    line: str  # of edges
    faint: str  # of rings and grids
    toward: str
    away: str
    unsigned: str
    neutral: str  # in the middle of signed colours, and at the end of unsigned ones

    def ink(self, fill: Any) -> str:
        r"""The colour of text on a fill."""
        return max((self.page, self.text), key=lambda color: contrast(color, fill))

    def colors(self, is_signed: bool) -> Colormap:
        r"""A scale from away to toward, or from nothing to much."""
        from matplotlib.colors import LinearSegmentedColormap

        ends = [self.away, self.neutral, self.toward] if is_signed else [self.neutral, self.unsigned]
        return LinearSegmentedColormap.from_list('signed' if is_signed else 'unsigned', ends)

    def edge_colors(self) -> Colormap:
        r"""A scale from away to toward, with lines that can be seen in the middle."""
        from matplotlib.colors import LinearSegmentedColormap

        return LinearSegmentedColormap.from_list('edges', [self.away, self.line, self.toward])

    def shares(self) -> Colormap:
        r"""A scale from none to all."""
        from matplotlib.colors import LinearSegmentedColormap

        return LinearSegmentedColormap.from_list('shares', [self.neutral, self.away])


THEMES = {
    'light': Theme('#FFFFFF', '#1B1F24', '#636B74', '#8A929A', '#E3E6E9', '#D55E00', '#0072B2', '#007F5C', '#F7F7F7'),
    'dark': Theme('#15181C', '#ECEFF2', '#9BA4AE', '#79828C', '#2F353B', '#FF8A3D', '#56B4E9', '#2FD3A2', '#3A4048'),
}


def theme_of(name: str) -> Theme:
    return THEMES[options.choice('theme', name, tuple(THEMES))]


def new_figure(theme: Theme, width: float, height: float, is_tidy: bool = False) -> Figure:
    r"""An empty page of so many inches, which pyplot knows nothing of; a tidy one makes room for all labels."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        from pyg_dnx.plot.picture import Picture
    except ImportError as error:
        raise ImportError("pictures need 'matplotlib', which is not installed: pip install matplotlib") from error
    figure = Picture(figsize=(width, height), facecolor=theme.page)
    if is_tidy:
        figure.set_layout_engine('constrained', w_pad=0.12, h_pad=0.08, wspace=0.02, hspace=0.02)
    FigureCanvasAgg(figure)  # which knows how large texts are
    return figure


def dress(axes: Any, theme: Theme) -> Any:
    r"""Gives axes the colours of a theme, and leaves out the frame's upper and right sides."""
    axes.set_facecolor(theme.page)
    axes.tick_params(colors=theme.muted, labelcolor=theme.text, labelsize=8)
    axes.spines[['top', 'right']].set_visible(False)
    axes.spines[['left', 'bottom']].set_color(theme.muted)
    for part in (axes.xaxis.label, axes.yaxis.label, axes.title):
        part.set(color=theme.text)
    return axes


def saved(figure: Figure, path: str | PathLike[str] | None) -> Figure:
    r"""The figure, and its picture in a file, whose name ends in the format; whole, or what was there is unchanged."""
    if path is not None:
        path = Path(path)
        kind = path.suffix[1:] or figure.canvas.get_default_filetype()
        path = path if path.suffix else path.with_name(f'{path.name}.{kind}')
        with files.replacing(path) as file:
            figure.savefig(file, format=kind, dpi=DPI, facecolor=figure.get_facecolor())
    return figure


def contrast(one: Any, other: Any) -> float:
    r"""The contrast of two colours by WCAG's definition, from 1 to 21."""
    from matplotlib.colors import to_rgb

    def luminance(color: Any) -> float:
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)
