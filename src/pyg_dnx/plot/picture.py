r"""What the functions of :mod:`pyg_dnx.plot` return; imported with matplotlib, when a picture is drawn."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class Picture(Figure):
    r"""A figure of matplotlib that a notebook shows, whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format='png', dpi=100, facecolor=self.get_facecolor())
        return buffer.getvalue()
