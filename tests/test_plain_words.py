r"""Plain technical English, read once: short sentences, and none of the phrases that have to be read twice.

CONTRIBUTING.md says how to write; this file says what is refused, with what to write instead.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REFERENCE = ('docs/api.md', 'docs/tables', 'CHANGELOG.md')  # which are looked up, and not read
PAGES = [*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md'), *(ROOT / 'examples').glob('*.md')]
CODE = [path for folder in ('src', 'examples', 'evaluation') for path in (ROOT / folder).rglob('*.py')]
MOST_WORDS = 35
INSTEAD = {
    r'foret(ell|old)': 'predict',
    r'sp(eak|eaks|oke|oken) (for|against)': 'support, oppose, or stand for',
    r'\bheard\b': 'used',
    r'to the letter': 'exactly',
    r'deals? (it|them|\w+)? ?out anew|dealt out anew': 're-ranks',
    r'\bby lot\b': 'at random',
    r'as ever\b': 'as in PyG',
    r'said of it\b': 'known of it',
}


def is_reference(path):
    return str(path.relative_to(ROOT)).startswith(REFERENCE)


def sentences_of(page):
    r"""The sentences of a page, without code, tables, formulas and pictures."""
    blocks = r'\A---\n.*?\n---\n|<!--.*?-->|^ *```.*?^ *```|\$\$.*?\$\$'
    page = re.sub(blocks, '', page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r'^(?:    \S|\||!\[).*$', '', page, flags=re.MULTILINE)
    page = re.sub(r'\]\([^)]*\)', ']', page)
    page = re.sub(r'`[^`]*`|\$[^$\n]+\$', 'X', page)
    for block in re.split(r'\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)', page):
        yield from re.split(r'(?<=[.!?])\s+', ' '.join(block.split()))


PROSE = sorted(path for path in PAGES if not is_reference(path))


@pytest.mark.parametrize('path', PROSE, ids=[str(path.relative_to(ROOT)) for path in PROSE])
def test_sentences_are_short(path):
    long = [s for s in sentences_of(path.read_text(encoding='utf-8')) if len(s.split()) > MOST_WORDS]
    assert not long, f'more than {MOST_WORDS} words: {long}'


def test_phrases_that_have_to_be_read_twice():
    found = [
        f'{path.relative_to(ROOT)}: {match.group(0)!r}, write {instead!r}'
        for path in [*PROSE, *CODE]
        for phrase, instead in INSTEAD.items()
        for match in re.finditer(phrase, path.read_text(encoding='utf-8'), re.IGNORECASE)
    ]
    assert not found, '\n'.join(found)


def test_a_long_sentence_is_seen():
    page = 'Short.\n\n| a ' + 'word ' * 50 + '|\n\n' + 'word ' * 36 + 'end. Another.\n'
    assert [len(s.split()) for s in sentences_of(page) if len(s.split()) > MOST_WORDS] == [37]
