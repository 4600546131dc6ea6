r"""Imports go one way: the order of packages is the table of docs/modules.md, from which the picture is drawn, too."""

import ast
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / 'src' / 'pyg_dnx'
# What a result shows of itself when asked, imported when it is called: (importing module, imported package).
SHOWN_WHEN_CALLED = {('results.explanation', 'view'), ('results.node_explanations', 'view'), ('trust.report', 'plot')}


def layers():
    r"""The packages in the order in which they may be imported."""
    page = (ROOT / 'docs' / 'modules.md').read_text(encoding='utf-8')
    return re.findall(r'^\| `?(\w+)`? \| ', page.split('| folder |')[0], re.MULTILINE)[1:]


def name_of(path):
    return '.'.join(path.relative_to(PACKAGE).with_suffix('').parts)


def package_of(module):
    return module.rpartition('.')[0] or 'top'


MODULES = {name_of(path): path for path in PACKAGE.rglob('*.py') if path.stem != '__init__'}


def statements_of(node):
    r"""The statements of a module, wherever in it, but for what only a type checker reads."""
    yield node
    if not (isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING'):
        for child in ast.iter_child_nodes(node):
            yield from statements_of(child)


def imports_of(code):
    r"""The modules and packages of pyg_dnx that a module's code imports, wherever in it."""
    for node in statements_of(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f'{node.module}.{alias.name}'.removeprefix('pyg_dnx.')
                part = f'{node.module}.'.removeprefix('pyg_dnx.').rstrip('.')
                if node.module.startswith('pyg_dnx'):
                    yield full if full in MODULES or full in layers() else part
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix('pyg_dnx.') for alias in node.names if 'pyg_dnx' in alias.name)


def known(imported):
    r"""Without the package's own name, whose ``__version__`` anyone may read."""
    return {name for name in imported if name and name != 'pyg_dnx'}


def test_table_has_every_package():
    folders = {path.name for path in PACKAGE.iterdir() if (path / '__init__.py').exists()}
    assert sorted(layers()) == sorted(folders | {'top'})


@pytest.mark.parametrize('module', sorted(MODULES))
def test_imports_nothing_to_the_right(module):
    order = layers()
    for imported in known(imports_of(MODULES[module].read_text(encoding='utf-8'))):
        package = imported if imported in order else package_of(imported)
        if (module, package) not in SHOWN_WHEN_CALLED:
            assert order.index(package) <= order.index(package_of(module)), f'{module} imports {imported}'


def test_no_module_imports_itself_by_others():
    imported = defaultdict(set)
    for module, path in MODULES.items():
        imported[module] = {
            name
            for name in known(imports_of(path.read_text(encoding='utf-8')))
            if (module, package_of(name)) not in SHOWN_WHEN_CALLED
        }
    assert list(TopologicalSorter(imported).static_order())  # a CycleError names the cycle


def test_an_import_to_the_right_is_seen():
    assert set(imports_of('def f():\n    from pyg_dnx.view.html import to_html\n')) == {'view.html'}
    assert set(imports_of('from pyg_dnx import plot\nimport torch')) == {'plot'}
