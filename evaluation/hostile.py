r"""What becomes of files that are damaged, of folders that several processes write to, and of models when interrupted.

    python evaluation/hostile.py --count 1000 --races 50 --interrupts 100

Prints how often each ended well, in an error that says what to do, in another error, or wrong without a word.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch_geometric.explain import Explainer
from torch_geometric.nn import GCNConv

from pyg_dnx import DnX, FastDnX, NodeExplanations, ProbeDnX, Surrogate

EXPLAINERS = {'FastDnX': FastDnX, 'DnX': DnX, 'ProbeDnX': lambda **options: ProbeDnX(num_probes=6, **options)}
WELL, TOLD, BARE, WRONG = OUTCOMES = ('as it was', 'told', 'bare error', 'wrong')
CONFIG = {'mode': 'multiclass_classification', 'task_level': 'node', 'return_type': 'raw'}
CODES = {WELL: 0, TOLD: 1, BARE: 2, WRONG: 3}
NUM_NODES, ENTRIES = 60, 300


class Restless(torch.nn.Module):
    r"""A model in training, with all that an evaluation may change: caches, buffers, statistics, lists, tensors."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GCNConv(4, 8, cached=True), GCNConv(8, 3)
        self.norm, self.frozen = torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(8).eval()
        self.drop = torch.nn.Dropout(0.5)
        self.register_buffer('seen', torch.zeros(1))
        self.total, self.calls, self.kept = torch.zeros(3), 0, {'outputs': [], 'spare': [self.drop]}

    def forward(self, x, edge_index):
        self.calls += 1
        self.seen += torch.rand(1)
        x = self.second(self.drop(self.frozen(self.norm(self.first(x, edge_index)))).relu(), edge_index)
        self.total += x.sum(dim=0)
        self.kept['outputs'].append(x)
        self.last = x
        return x


def graph():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NUM_NODES, (2, 3 * NUM_NODES), generator=generator)
    return torch.randn(NUM_NODES, 4, generator=generator), torch.cat([edge_index, edge_index.flip(0)], dim=1)


def explain_nodes(kind='FastDnX', model=None, seed=0, **options):
    x, edge_index = graph()
    model = Restless() if model is None else model
    if seed:
        torch.nn.init.normal_(model.second.bias)
    algorithm = Explainer(
        model, EXPLAINERS[kind](cache=None), explanation_type='model', node_mask_type='object', model_config=CONFIG
    ).algorithm
    run = algorithm._run(False)
    algorithm._run = lambda progress=False: type(run)(run.max_memory, progress, ENTRIES)  # several pieces
    return algorithm.explain_nodes(model, x, edge_index, progress=False, **options)


def content(value):
    r"""All numbers of an object, with their names."""
    if isinstance(value, torch.Tensor):
        value = value.to_sparse_coo().coalesce() if value.layout == torch.sparse_csr else value
        parts = (value.indices(), value.values()) if value.is_sparse else (value,)
        return [(str(part.dtype), tuple(part.shape), part.detach().contiguous().numpy().tobytes()) for part in parts]
    if isinstance(value, (list, tuple)):
        return [content(item) for item in value]
    if isinstance(value, dict):
        return {name: content(item) for name, item in value.items() if name != 'seconds'}
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def of_surrogate(surrogate):
    return content(surrogate.to_dict())


def of_explanations(found):
    top = None if found.scores is not None else found.top_k(3)
    return content([found.index, found.scores, top, found.surrogate.to_dict(), found.targets, found._trust.to_dict()])


# Damage


def damage(data, other, draw):
    r"""Flips bits of a file, cuts it, swaps or zeroes blocks, mixes it with another, or puts that in its place."""
    data, kind = bytearray(data), draw.choice(('flip', 'cut', 'swap', 'zero', 'mix', 'grow', 'other'))
    first, last = sorted(draw.randrange(len(data)) for _ in range(2))
    if kind == 'flip':
        for _ in range(draw.choice((1, 1, 8))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == 'cut':
        del data[first:]
    elif kind == 'swap':
        size = min(64, last - first, len(data) - last)
        data[first : first + size], data[last : last + size] = data[last : last + size], data[first : first + size]
    elif kind == 'zero':
        data[first:last] = bytes(last - first)
    elif kind == 'mix':
        data[first:last] = other[first:last]
    elif kind == 'grow':
        data[first:first] = other[first:last]
    else:
        data = other
    return bytes(data)


def judged(task, expected, words, *args):
    r"""How a task ended: as expected, in an error with some words, in another error, or otherwise."""
    try:
        found = task(*args)
    except ValueError as error:
        return TOLD if any(word in str(error) for word in words) else BARE
    except Exception as error:
        print('   ', type(error).__name__, error, file=sys.stderr)
        return BARE
    return WELL if found == expected else WRONG


def as_format_1(path, kind):
    r"""Writes a file anew, as of format 1: PyTorch's format alone."""
    with open(path, 'rb') as file:
        file.readline()
        torch.save({'format': f'pyg_dnx.{kind}/1', **torch.load(file, weights_only=True)}, f'{path}.1')
    return f'{path}.1'


def files_of(folder):
    r"""Each kind of file: two of them, and how what it holds is read."""
    every = {}
    for name, options in {'all scores': {}, 'top k': {'top_k': 3}, 'probes': {'kind': 'ProbeDnX'}}.items():
        for seed in (0, 1):
            explain_nodes(seed=seed, **options).save(f'{folder}/{name}.{seed}')
        every[name] = lambda path: of_explanations(NodeExplanations.load(path))
    for seed in (0, 1):
        explain_nodes(seed=seed).surrogate.save(f'{folder}/surrogate.{seed}')
    every['surrogate'] = lambda path: of_surrogate(Surrogate.load(path))
    for name in list(every):
        for seed in (0, 1):
            kind = 'Surrogate' if name == 'surrogate' else 'NodeExplanations'
            os.rename(as_format_1(f'{folder}/{name}.{seed}', kind), f'{folder}/{name}, format 1.{seed}')
        every[f'{name}, format 1'] = every[name]
    return every


def corrupt(count, folder, seed=0):
    r"""Yields for each kind of file how reading it ended, ``count`` times, each with other damage."""
    draw = random.Random(seed)
    for name, read in files_of(folder).items():
        path, other = Path(f'{folder}/{name}.0'), Path(f'{folder}/{name}.1').read_bytes()
        whole, expected, foreign = path.read_bytes(), read(path), read(f'{folder}/{name}.1')
        found = Counter()
        for _ in range(count):
            data = damage(whole, other, draw)
            path.write_bytes(data)
            found[judged(read, foreign if data == other else expected, ["'path' must"], path)] += 1
        yield name, found
    yield 'folder of pieces', corrupt_folder(count, f'{folder}/pieces', draw)


def corrupt_folder(count, folder, draw):
    r"""Damages one or two files of a folder of finished pieces, and makes the same call again."""
    expected = of_explanations(explain_nodes(checkpoint=folder))
    explain_nodes(checkpoint=f'{folder}-1', seed=1)
    whole = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    others = [path.read_bytes() for path in Path(f'{folder}-1').iterdir()] + list(whole.values())
    found = Counter()
    for _ in range(count):
        for name in draw.sample(sorted(whole), draw.choice((1, 1, 2))):
            Path(folder, name).write_bytes(damage(whole[name], draw.choice(others), draw))
        found[judged(lambda: of_explanations(explain_nodes(checkpoint=folder)), expected, ["'checkpoint' must"])] += 1
        shutil.rmtree(folder)
        os.mkdir(folder)
        for name, data in whole.items():
            Path(folder, name).write_bytes(data)
    return found


# Races


def race(count, folder, seed=0, size=3):
    r"""Starts some processes on one folder at once, ``count`` times, and kills one of them in every other race."""
    draw, found, after = random.Random(seed), Counter(), Counter()
    expected = of_explanations(explain_nodes())
    for number in range(count):
        place = f'{folder}/race {number}'

        def task(place=place):
            return judged(lambda: of_explanations(explain_nodes(checkpoint=place)), expected, ['no other call writes'])

        start, go = os.pipe()
        pids = [in_child(task, start, go) for _ in range(size)]
        os.close(start)
        os.close(go)  # which all wait for
        victim = draw.choice(pids) if number % 2 else None
        if victim is not None:
            signal.sigtimedwait([], draw.uniform(0.0, 0.1))
            os.kill(victim, signal.SIGKILL)
        for pid in pids:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if not (pid == victim and code < 0):
                found[OUTCOMES[code] if 0 <= code < len(OUTCOMES) else BARE] += 1
        after[task()] += 1
    return found, after


def in_child(task, start, go):
    pid = os.fork()
    if pid == 0:
        code = CODES[BARE]
        try:
            os.close(go)
            os.read(start, 1)
            code = CODES[task()]
        finally:
            os._exit(code)
    return pid


# Interrupts


def state_of(model):
    r"""All of a model, and of the process, that a call must leave as it was."""
    modules = [
        (id(part), part.training, content(vars(part)), list(map(id, vars(part).values()))) for part in model.modules()
    ]
    gradients = [(parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    return (
        modules,
        gradients,
        content(model.state_dict()),
        content(torch.get_rng_state()),
        torch.get_num_threads(),
        (
            warnings.filters[:],
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
        ),
    )


def call_of(kind, model):
    r"""One explanation after many, by one algorithm."""
    x, edge_index = graph()
    target = torch.zeros(NUM_NODES, dtype=torch.long)

    def call():
        found = explain_nodes(kind, model, index=torch.arange(6))
        algorithm = Explainer(
            model, EXPLAINERS[kind](cache=None), explanation_type='model', node_mask_type='object', model_config=CONFIG
        ).algorithm
        algorithm(model, x, edge_index, target=target, index=3)
        return of_explanations(found)

    return call


def interrupt(kind, count, seed=0):
    r"""Interrupts an explainer at random lines, its own and PyG's, and looks at the model; explains it at last."""
    draw, found, model = random.Random(seed), Counter(), Restless()
    call = call_of(kind, model)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        before, expected, total = state_of(model), call(), lines_of(call)
        for _ in range(count):
            is_interrupted = lines_of(call, draw.randrange(total)) is None
            if state_of(model) != before:
                found[WRONG] += 1
                model = Restless()
                call = call_of(kind, model)
                before = state_of(model)
            else:
                found[WELL if is_interrupted else 'not interrupted'] += 1
        found[WELL if call() == expected else WRONG] += 1
    return found


def lines_of(call, stop=None):
    r"""How many lines a call takes; ``None`` if it is interrupted at line ``stop``."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not any(name in frame.f_code.co_filename for name in ('pyg_dnx', 'torch_geometric', __file__)):
            return None
        if event == 'line':
            count += 1
            if count == stop:
                raise KeyboardInterrupt
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(tracing)
    return count


def table(rows):
    r"""Lines of a table of how often each ended in which way."""
    names = [*OUTCOMES, *sorted({name for _, found in rows for name in found} - {*OUTCOMES})]
    yield f'| | {" | ".join(names)} |'
    yield '|---' * (len(names) + 1) + '|'
    for name, found in rows:
        yield f'| {name} | {" | ".join(str(found[key]) for key in names)} |'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--count', type=int, default=1000, help='corruptions of each kind of file')
    parser.add_argument('--races', type=int, default=50, help='races of three processes')
    parser.add_argument('--interrupts', type=int, default=100, help='interrupts of each explainer')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [(f'damaged: {name}', found) for name, found in corrupt(args.count, folder)]
        found, after = race(args.races, folder)
        rows += [('processes at once', found), ('the folder afterwards', after)]
    rows += [(f'interrupted: {kind}', interrupt(kind, args.interrupts)) for kind in EXPLAINERS]
    print('\n'.join(table(rows)))


if __name__ == '__main__':
    main()
