r"""How Sphinx builds the pages: sphinx-build -W --keep-going -b html docs build/docs."""

from pyg_dnx import __version__

project = 'pyg-dnx'
author = 'The pyg-dnx developers'
copyright = author
release = __version__

extensions = [
    'myst_nb',  # with myst_parser
    'sphinx.ext.autodoc',
    'sphinx.ext.mathjax',
    'sphinx-mathjax-offline',  # formulas without a network
    'sphinx.ext.napoleon',
    'sphinx_copybutton',
]
myst_enable_extensions = ['dollarmath']
myst_heading_anchors = 4  # as on GitHub, for links such as paper.md#node-accuracy-table-1

autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True  # names, not what they hold
autodoc_typehints = 'none'  # types stand with the arguments
napoleon_use_param = False  # several arguments may share a line
python_maximum_signature_line_length = 80

nb_execution_mode = 'force'
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_output_stderr = 'remove'

html_theme = 'furo'
html_title = f'pyg-dnx {release}'
html_static_path = ['static']
html_css_files = ['custom.css']
copybutton_exclude = '.linenos, .gp, .go'
