r"""Files are whole or not there, and what is damaged is never read as if it were not."""

import errno
import io
import os
import stat
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor

from pyg_dnx import files

CONTENT = {'weight': torch.arange(12.0).view(3, 4), 'names': ['a', 'b'], 'number': 7, 'flags': torch.tensor([True])}
OTHER = {
    'weight': torch.arange(12.0).view(3, 4).flip(0),
    'names': ['a', 'c'],
    'number': 8,
    'flags': torch.tensor([True]),
}


def written(content, version=2):
    if version == 2:
        path = 'file.pt'
        files.write(path, 'Thing', content)
        return open(path, 'rb').read()
    buffer = io.BytesIO()
    torch.save({'format': 'pyg_dnx.Thing/1', **content}, buffer)
    return buffer.getvalue()


def read(data, kind='Thing'):
    with open('read.pt', 'wb') as file:
        file.write(data)
    return files.read('read.pt', kind, dict)


def is_same(found, expected=CONTENT):
    return found.keys() == expected.keys() and all(
        value.equal(found[name]) and value.dtype == found[name].dtype
        if torch.is_tensor(value)
        else value == found[name]
        for name, value in expected.items()
    )


@pytest.fixture(autouse=True, scope='module')
def _folder(tmp_path_factory):
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp('files'))
    yield
    os.chdir(before)


@pytest.mark.parametrize('version', [1, 2])
def test_what_is_written_is_read(version):
    data = written(CONTENT, version)
    assert is_same(read(data))
    assert data.startswith(b'pyg_dnx.Thing/2 ') == (version == 2)
    with pytest.raises(
        ValueError, match=r"'path' must name a file written by 'Other.save' \(got 'read.pt', which is dam"
    ):
        read(data, 'Other')


PLACES = st.integers(0, 2**20)
DAMAGES = st.lists(
    st.one_of(
        st.tuples(st.just('flip'), PLACES, st.integers(1, 255)),
        st.tuples(st.just('cut'), PLACES, st.none()),
        st.tuples(st.just('swap'), PLACES, PLACES),
        st.tuples(st.just('interleave'), PLACES, PLACES),
        st.tuples(st.just('insert'), PLACES, st.binary(min_size=1, max_size=9)),
        st.tuples(st.just('zeros'), PLACES, st.integers(1, 600)),
    ),
    min_size=1,
    max_size=3,
)


def damaged(data, other, damages):
    data = bytearray(data)
    for kind, place, value in damages:
        place = place % (len(data) + 1)
        if kind == 'flip' and place < len(data):
            data[place] ^= value
        elif kind == 'cut':
            del data[place:]
        elif kind == 'swap' and data:
            first, second = sorted((place % len(data), value % len(data)))
            size = min(16, second - first, len(data) - second)
            one, two = data[first : first + size], data[second : second + size]
            data[first : first + size], data[second : second + size] = two, one
        elif kind == 'interleave':
            first, last = sorted((place, value % (len(data) + 1)))
            data[first:last] = other[first:last]
        elif kind == 'insert':
            data[place:place] = value
        elif kind == 'zeros':
            data[place : place + value] = bytes(len(data[place : place + value]))
    return bytes(data)


@pytest.mark.parametrize('version', [1, 2])
@given(damages=DAMAGES)
def test_damaged_files_are_refused_or_read_as_they_were(version, damages):
    whole, other = written(CONTENT, version), written(OTHER, version)
    data = damaged(whole, other, damages)
    try:
        found = read(data)
    except ValueError:
        assert data != whole
    else:
        assert is_same(found, OTHER if data == other else CONTENT)
        assert version == 1 or data in (whole, other)  # of format 1, padding isn't covered


def test_each_bit_of_a_file_counts():
    whole = written(CONTENT)
    for place in [*range(0, len(whole), 37), len(whole) - 1]:
        with pytest.raises(ValueError, match='damaged'):
            read(damaged(whole, whole, [('flip', place, 1 << place % 8)]))


def test_a_member_of_an_old_file_that_was_changed_with_its_name_is_refused():
    members = zipfile.ZipFile(io.BytesIO(written(CONTENT, 1)))
    assert members.testzip() is None
    data = written(CONTENT, 1)
    place = data.index(CONTENT['weight'].numpy().tobytes())
    with pytest.raises(ValueError, match='damaged'):
        read(damaged(data, data, [('flip', place + 5, 64)]))


FAILURES = {'write': '_write', 'sync': '_sync', 'rename': '_rename'}
WRITERS = {
    'file': lambda path: files.write(path, 'Thing', CONTENT),
    'text': lambda path: files.write_text(path, 'new'),
    'parts': lambda path: files.write_text(path, iter(['n', 'ew'])),
}


@pytest.mark.parametrize('kind', FAILURES)
@pytest.mark.parametrize('writer', WRITERS)
@pytest.mark.parametrize('number', [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_a_failure_leaves_the_file_that_was_there(number, writer, kind, tmp_path, monkeypatch):
    path, calls = tmp_path / 'kept', []

    def fail(*_):
        calls.append(1)
        if len(calls) == (2 if kind == 'write' and writer != 'text' else 1):
            raise OSError(number, os.strerror(number))
        return 0

    path.write_text('old')
    monkeypatch.setattr(files, FAILURES[kind], fail)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        WRITERS[writer](path)
    assert caught.value.errno == number
    sentence = "'path' must be where there is room to write (got "
    assert (sentence in str(caught.value)) == (number != errno.EIO)
    assert path.read_text() == 'old'
    assert [item.name for item in tmp_path.iterdir()] == ['kept']


def test_a_limit_on_the_size_of_files_is_one_sentence(tmp_path):
    resource = pytest.importorskip('resource')
    (tmp_path / 'kept').write_text('old')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"'path' must be where there is room to write .* free some, or pass another"):
            files.write(tmp_path / 'kept', 'Thing', {'much': torch.zeros(10**5)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / 'kept').read_text() == 'old'
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    'error', [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:1] . can't allocate memory: you tried")]
)
def test_too_little_memory_is_no_damage(error, monkeypatch):
    data = written(CONTENT)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(torch, 'load', fail)
    with pytest.raises(MemoryError, match=r"'path' must name a file that fits into memory .*: free some memory"):
        read(data)


def test_errors_name_the_path_that_was_given(tmp_path):
    with pytest.raises(FileNotFoundError, match='missing/file') as caught:
        files.write_text(tmp_path / 'missing' / 'file', 'text')
    assert files.UNFINISHED not in str(caught.value)
    with pytest.raises(IsADirectoryError):
        files.write_text(tmp_path, 'text')


def test_links_and_permissions_stay(tmp_path):
    (tmp_path / 'file').write_text('old')
    (tmp_path / 'file').chmod(0o640)
    (tmp_path / 'link').symlink_to(tmp_path / 'file')
    files.write_text(tmp_path / 'link', 'new')
    assert (tmp_path / 'link').is_symlink()
    assert (tmp_path / 'file').read_text() == 'new'
    assert stat.S_IMODE((tmp_path / 'file').stat().st_mode) == 0o640


@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='needs named pipes')
def test_pipes_are_written_to_not_replaced(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    end = os.open(tmp_path / 'pipe', os.O_RDONLY | os.O_NONBLOCK)
    files.write_text(tmp_path / 'pipe', 'text')
    assert stat.S_ISFIFO((tmp_path / 'pipe').stat().st_mode)
    assert os.read(end, 9) == b'text'
    os.close(end)


def matrix(layout):
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    if layout == 'SparseTensor':
        return SparseTensor.from_dense(dense)
    return {'coo': dense.to_sparse, 'csr': dense.to_sparse_csr, 'csc': dense.to_sparse_csc}[layout]()


VALUES = {
    'nothing': lambda: None,
    'int': lambda: 1,
    'bool': lambda: True,
    'float': lambda: 1.0,
    'string': lambda: '1',
    'bytes': lambda: b'1',
    'list': lambda: [1, 2],
    'nested': lambda: [1, [2]],
    'tuple': lambda: (1, 2),
    'dict': lambda: {'a': 1},
    'floats': lambda: torch.arange(6.0).view(2, 3),
    'transposed shape': lambda: torch.arange(6.0).view(3, 2),
    'doubles': lambda: torch.arange(6.0, dtype=torch.float64).view(2, 3),
    'ints': lambda: torch.arange(6).view(2, 3),
    'halves': lambda: torch.arange(6.0).bfloat16(),
    'complex': lambda: torch.arange(6.0) * 1j,
    'scalar': lambda: torch.tensor(1.0),
    'bools': lambda: torch.tensor([True, False]),
    'empty': lambda: torch.zeros(0, 3),
    **{layout: lambda layout=layout: matrix(layout) for layout in ['coo', 'csr', 'csc']},
    **({'SparseTensor': lambda: matrix('SparseTensor')} if WITH_TORCH_SPARSE else {}),
}


def test_digests_tell_values_apart(monkeypatch):
    found = {name: files.digest(make()) for name, make in VALUES.items()}
    assert len(set(found.values())) == len(found)
    monkeypatch.setattr(files, 'CHUNK', 8)
    assert {name: files.digest(make()) for name, make in VALUES.items()} == found
    assert files.digest('a', 'b') != files.digest('ab')


def test_digests_go_by_content(tmp_path):
    x = torch.arange(6.0).view(2, 3)
    np.save(tmp_path / 'x.npy', x.numpy())
    same = [x.t().contiguous().t(), x.clone().requires_grad_(), x.numpy(), np.load(tmp_path / 'x.npy', mmap_mode='r')]
    with torch.inference_mode():
        same.append(x.clone())
    assert {files.digest(value) for value in same} == {files.digest(x)}
    edges = torch.tensor([[0, 1], [1, 0]])
    assert files.digest(EdgeIndex(edges, sparse_size=(2, 2))) == files.digest(edges)
    with pytest.raises(TypeError, match='a digest must be of tensors'):
        files.digest(object())
