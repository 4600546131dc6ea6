r"""The pages: every Python block runs, every link leads somewhere, and every name is on its page.

The blocks of a page run in their order, in one namespace that starts with the ``model``, the ``data`` and the
``explainer`` of the quickstart. What else a page takes for granted stands in it unseen, in a comment
``<!-- python ... -->``. A block after ``<!-- not run: why -->`` is left out.
"""

import re
from itertools import islice
from pathlib import Path

import pytest

import pyg_dnx
from pyg_dnx import datasets, plot

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md')])
BLOCK = re.compile(r'^(?:```python\n(?P<shown>.*?)^```$|<!-- python\n(?P<hidden>.*?)^-->$)', re.MULTILINE | re.DOTALL)
CODE = re.compile(r'^```.*?^```$|`[^`\n]+`', re.MULTILINE | re.DOTALL)
LINK = re.compile(r'\]\(([^)\s]+)\)')
HERE = re.compile(r'^https://(?:github\.com/pyg-dnx/pyg-dnx/blob|raw\.githubusercontent\.com/pyg-dnx/pyg-dnx)/main/')
NOT_RUN = re.compile(r'<!-- not run: [^\n]+ -->\n+$')


def blocks_of(text):
    r"""The code of each block of a page, and the line where it starts."""
    for found in BLOCK.finditer(text):
        group = 'hidden' if found['shown'] is None else 'shown'
        if NOT_RUN.search(text[: found.start()]) is None:
            yield found[group], text[: found.start(group)].count('\n')


def anchors_of(text):
    r"""The anchors of a page's headings, as GitHub and Sphinx name them."""
    headings = re.findall(r'^#+ (.*)$', re.sub(r'^```.*?^```$', '', text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


def ids(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


WITH_CODE = [page for page in PAGES if any(blocks_of(page.read_text(encoding='utf-8')))]


@pytest.fixture(scope='module')
def prepared():
    r"""The names that the quickstart's first two blocks define."""
    namespace = {}
    for code, _ in islice(blocks_of((ROOT / 'docs' / 'quickstart.md').read_text(encoding='utf-8')), 2):
        exec(code, namespace)
    return {name: namespace[name] for name in ('model', 'data', 'explainer')}


@pytest.mark.parametrize('page', WITH_CODE, ids=ids(WITH_CODE))
def test_blocks_run(page, prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = dict(prepared)
    for code, line in blocks_of(page.read_text(encoding='utf-8')):
        exec(compile('\n' * line + code, page, 'exec'), namespace)


def test_blocks_are_found():
    run, left_out = '```python\nx = 1\n```\n<!-- python\ny = 2\n-->\n', '```python\nz\n```\n```bash\nb\n```\n'
    text = f'a\n{run}<!-- not run: slow -->\n{left_out}'
    assert list(blocks_of(text)) == [('x = 1\n', 2), ('y = 2\n', 5)]


@pytest.mark.parametrize('page', PAGES, ids=ids(PAGES))
def test_links_lead_somewhere(page):
    for link in LINK.findall(CODE.sub('', page.read_text(encoding='utf-8'))):
        link = HERE.sub(f'{ROOT}/', link)
        if re.match(r'\w+:', link):
            continue
        path, _, anchor = link.partition('#')
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target.read_text(encoding='utf-8')), link


def test_api_page_has_every_name():
    page = (ROOT / 'docs' / 'api.md').read_text(encoding='utf-8')
    shown = set(re.findall(r'^ *\.\. auto\w+:: (?:\w+\.)*(\w+)', page, re.MULTILINE))
    public = {getattr(getattr(pyg_dnx, name), '__name__', name) for name in pyg_dnx.__all__} - {plot.__name__}
    assert not (public | {*datasets.__all__, *plot.__all__}) - shown


def test_changelog_has_this_version():
    text = (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8')
    assert re.search(rf'^## \[{re.escape(pyg_dnx.__version__)}\] - \d{{4}}-\d\d-\d\d$', text, re.MULTILINE)
