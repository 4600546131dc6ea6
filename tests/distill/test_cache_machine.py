r"""Whatever is done to models and graphs, a cached answer is the one without a cache, and nothing is distilled twice.

Left out is what the cache can't see: writes to inputs that bypass the version counter, as ``x.data[...] = …``.
"""

import copy
import gc
import pickle
import random
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from cache_case import (
    GRAPH_CHANGES,
    MODEL_CHANGES,
    Subject,
    all_of,
    assert_same,
    edited,
    everything,
    key_of,
    names,
    new_graph,
    number_of,
    state_of,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from models import Bare, connected, evaluations, explainer, graph

from pyg_dnx import DnX, FastDnX, ProbeDnX, shared_cache
from pyg_dnx.teacher import private

pytestmark = pytest.mark.filterwarnings('ignore::pyg_dnx.SurrogateWarning')
ALGORITHMS = {  # and the number of masks that each is distilled under
    'FastDnX': (FastDnX, {}, 0),
    'DnX': (DnX, {}, 0),
    'ProbeDnX': (ProbeDnX, {'num_probes': 4, 'edge_score': 'flow'}, 4),
    'two hops': (FastDnX, {'num_hops': 2}, 0),
    'ridge': (DnX, {'ridge': 0.1}, 0),
    'masked': (FastDnX, {'distillation': 'masked', 'num_masks': 4}, 4),
}
DUPLICATES = [lambda value: value, copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]


@dataclass(eq=False)
class Known:
    r"""What should be in the cache."""

    key: tuple
    state: tuple
    is_probed: bool = False


def answer(model, given, name='FastDnX', single=False, duplicate=copy.copy, **more):
    make, options, _ = ALGORITHMS[name]
    explain = explainer(model, duplicate(make(**options, **more)), edge='object')
    if single:
        return explain(**given, index=2).to_dict()
    return all_of(explain.algorithm.explain_nodes(model, **given, progress=False))


PICKS = st.tuples(st.integers(0, 2), st.integers(0, 2))
NAMES = st.sampled_from(sorted(ALGORITHMS))


def several(changes):
    # Drawn by seed, as examples repeat a few favourites of a long list.
    return st.integers(0, 2**32).map(lambda seed: random.Random(seed).sample(sorted(changes), 6))


class CacheMachine(RuleBasedStateMachine):
    r"""Foretells each hit, each miss and each evaluation of a model, and what is left in the cache."""

    def __init__(self):
        super().__init__()
        gc.freeze()  # so that collecting takes no time
        shared_cache.clear()
        self.models, self.graphs, self.known = [Subject(), Subject()], [new_graph(), new_graph()], []
        self.hits, self.misses = shared_cache.hits, shared_cache.misses

    @initialize(max_size=st.integers(1, 4))
    def start(self, max_size):
        shared_cache.max_size = max_size

    def teardown(self):
        shared_cache.clear()
        shared_cache.max_size = 32
        names.clear()  # or each sequence looks through all that went before
        gc.unfreeze()

    def chosen(self, pick):
        given = self.graphs[pick[1] % len(self.graphs)]
        return self.models[pick[0] % len(self.models)], {k: value for k, value in given.items() if value is not None}

    def forget_the_dead(self):
        living = {None, *names.values()}
        self.known = [entry for entry in self.known if all(number in living for number, _ in entry.key)]

    def foretell(self, model, given, name, fail_at=99):
        r"""Returns how often the model will be evaluated, at most ``fail_at`` times."""
        self.forget_the_dead()
        _, options, num_masks = ALGORITHMS[name]
        how = (options.get('num_hops'), options.get('ridge'), num_masks)
        inputs = [pair for item in given.items() for pair in ((None, item[0]), *key_of(item[1]))]
        key, state, count = ((number_of(model), None), (None, how), *inputs), state_of(model), 0
        entry = next((entry for entry in self.known if entry.key == key), None)
        self.known = [other for other in self.known if other is not entry]
        if entry is not None and entry.state == state:
            self.hits += 1
        else:
            entry, count = Known(key, state), 1 + num_masks
            self.misses += 1
        if count < fail_at:
            if type(given.get('extra')) is not object:
                self.known = [*self.known, entry][-shared_cache.max_size :]
            if name == 'ProbeDnX' and not entry.is_probed:
                count += 5
                entry.is_probed = count < fail_at
        return min(count, fail_at)

    @invariant()
    def holds_what_is_foretold(self):
        self.forget_the_dead()
        assert len(shared_cache) == len(self.known) <= shared_cache.max_size
        entries = [entry for entry in shared_cache._entries if entry.value is not None]  # the next to go first
        assert [number_of(entry.model()) for entry in entries] == [entry.key[0][0] for entry in self.known]
        assert (shared_cache.hits, shared_cache.misses) == (self.hits, self.misses)

    def ask(self, pick, name='FastDnX', single=False, duplicate=copy.copy):
        model, given = self.chosen(pick)
        before = everything(model, given)
        with evaluations(model.head, self.foretell(model, given, name) + single):  # one is PyG's
            found = answer(model, given, name, single, duplicate)
        assert everything(model, given) == before
        return found

    @rule(pick=PICKS, name=NAMES, single=st.booleans(), duplicate=st.sampled_from(DUPLICATES))
    def explain(self, pick, name, single, duplicate):
        single = single and name != 'ProbeDnX'  # which asks about single nodes on copies
        expected = answer(*self.chosen(pick), name, single, cache=None)
        assert_same(self.ask(pick, name, single, duplicate), expected)

    @rule(pick=PICKS, name=NAMES, single=st.booleans(), num_threads=st.integers(2, 3))
    def explain_in_threads(self, pick, name, single, num_threads):
        model, given = self.chosen(pick)
        single = single and not model.training and name != 'ProbeDnX'  # PyG changes the mode while it evaluates a model
        before, barrier = everything(model, given), threading.Barrier(num_threads)
        count = sum(self.foretell(model, given, name) + single for _ in range(num_threads))

        def work(_):
            barrier.wait()
            return answer(model, given, name, single)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        with evaluations(model.head, count), ThreadPoolExecutor(num_threads) as pool:
            found = list(pool.map(work, range(num_threads)))
        sys.setswitchinterval(interval)
        assert everything(model, given) == before
        expected = answer(model, given, name, single, cache=None)
        for one in found:
            assert_same(one, expected)

    @rule(pick=PICKS, name=NAMES, fail_at=st.integers(1, 10))
    def fail_in_the_model(self, pick, name, fail_at):
        model, given = self.chosen(pick)
        before, calls = everything(model, given), []

        def fail(*_):
            calls.append(1)
            if len(calls) == fail_at:
                raise KeyboardInterrupt

        count = self.foretell(model, given, name, fail_at)
        handle = model.head.register_forward_hook(fail)
        try:
            answer(model, given, name)
        except KeyboardInterrupt:
            assert fail_at == count
        handle.remove()
        assert len(calls) == count
        assert everything(model, given) == before

    @rule(pick=PICKS, name=NAMES)
    def fail_on_input(self, pick, name):
        model, given = self.chosen(pick)
        before = everything(model, given)
        with pytest.raises(ValueError, match='finite'):
            answer(model, {**given, 'x': given['x'] * torch.nan}, name)
        with pytest.raises(TypeError, match='unknown'):
            answer(model, {**given, 'unknown': 1}, name)
        self.misses += 1  # the latter is refused before
        assert everything(model, given) == before

    @rule(pick=PICKS, name=st.sampled_from(['FastDnX', 'masked']))
    def train_meanwhile(self, pick, name):
        model, given = self.chosen(pick)
        handle = model.head.register_forward_hook(lambda *_: MODEL_CHANGES['optimizer.step'](model))
        self.foretell(model, given, name, fail_at=1)  # nothing is kept, as if it had failed
        answer(model, given, name)
        handle.remove()

    @rule(pick=PICKS, changes=several(MODEL_CHANGES))
    def change_a_model(self, pick, changes):
        for change in changes:
            self.ask(pick)
            MODEL_CHANGES[change](self.chosen(pick)[0])
        assert_same(self.ask(pick), answer(*self.chosen(pick), cache=None))

    @rule(pick=PICKS, changes=several(GRAPH_CHANGES))
    def change_a_graph(self, pick, changes):
        given = self.graphs[pick[1] % len(self.graphs)]
        for name, apply in map(GRAPH_CHANGES.get, changes):
            for once in [apply, edited] if name == 'extra' else [apply]:
                self.ask(pick)
                given[name] = once(given[name])
        assert_same(self.ask(pick), answer(*self.chosen(pick), cache=None))

    @precondition(lambda self: len(self.models) < 3)
    @rule()
    def add_a_model(self):
        first = self.models[0]
        self.models.append(copy.deepcopy(first).train(first.training))  # PyG 2.5 copies no modes

    @precondition(lambda self: len(self.graphs) < 3)
    @rule(shared=st.sampled_from(['x', 'edge_index', 'extra']))
    def add_a_graph(self, shared):
        self.graphs.append({**copy.deepcopy(self.graphs[0]), shared: self.graphs[0][shared]})

    @precondition(lambda self: len(self.models) > 1)
    @rule(number=st.integers(0, 2))
    def drop_a_model(self, number):
        gone = weakref.ref(self.models.pop(number % len(self.models)))
        gc.collect()
        assert gone() is None

    @precondition(lambda self: len(self.graphs) > 1)
    @rule(number=st.integers(0, 2))
    def drop_a_graph(self, number):
        gone = self.graphs.pop(number % len(self.graphs))['x']
        is_shared = any(given['x'] is gone for given in self.graphs)
        gone = weakref.ref(gone)
        gc.collect()
        assert is_shared or gone() is None

    @rule()
    def clear(self):
        shared_cache.clear()
        self.known = []


CacheMachine.TestCase.settings = settings(stateful_step_count=10)
TestCacheMachine = CacheMachine.TestCase


def test_a_thousand_models_leave_nothing_behind():
    algorithm, inputs, sizes = connected(FastDnX(num_hops=0), 'regression [N, 2]'), graph(), []
    gc.collect()
    before = len(shared_cache._creating), len(private._asking)  # other tests' models may be alive
    for count in (100, 900):
        for _ in range(count):
            algorithm.distill(Bare().eval(), *inputs)
        gc.collect()
        sizes.append(len(gc.get_objects()))  # tensors, entries and weak references among them
    assert len(shared_cache) == 0
    assert (len(shared_cache._creating), len(private._asking)) == before
    assert sizes[1] - sizes[0] < 450  # not one for every other model
