r"""Mutation testing: changes one operator, number or branch of a module at a time, and lists what no test notices.

Takes cosmic-ray's operators, and forks after torch is imported, which takes longer than most tests do.
"""

import argparse
import ast
import difflib
import gc
import hashlib
import importlib.abc
import importlib.util
import multiprocessing
import os
import re
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401
import torch_geometric.datasets
import torch_geometric.explain  # noqa: F401
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    'graph.operator': 'adjacency propagation batch mkl',
    'scores.attribution': 'attribution algorithm batch',
    'checkpoint': 'checkpoint_processes checkpoint',
    'distill.cache': 'cache_state cache_attributes cache_sharing cache checks checks_options',
    'distill.distill': 'distillation masked_distillation teacher teacher_outputs',
    'distill.state': 'cache_attributes cache_state cache',
    'distill.newton': 'newton solvers',
    'files': 'files node_explanations surrogate',
    'graph.rows': 'propagation adjacency batch mkl',
    'scores.simplex': 'simplex algorithm batch',
    'distill.solvers': 'solvers distillation masked_distillation',
}
# Of cosmic-ray's many replacements, those that are near: the opposite, the neighbour, the boundary.
TAKEN = re.compile(
    r'_(Add_Sub|Sub_Add|Mul_Div|Mul_Add|Div_Mul|FloorDiv_Mul|Mod_FloorDiv|Pow_Mul|Bit\w+_Bit\w+|Delete_\w+|'
    r'Is_IsNot|IsNot_Is|Eq_NotEq|NotEq_Eq|Lt_LtE|Lt_GtE|LtE_Lt|LtE_Gt|Gt_GtE|Gt_LtE|GtE_Gt|GtE_Lt)$|^core/(?!Variable)[A-Za-z]+$'
)


def mutants(source: str) -> Iterator[tuple[str, list[str]]]:
    r"""The mutants that compile, and what differs in each; none of annotations, which nothing evaluates."""
    tree = ast.parse(source)
    seen = {ast.dump(tree)}
    notes = [node for part in ast.walk(tree) for name in ('annotation', 'returns') if (node := getattr(part, name, 0))]
    for name in filter(TAKEN.search, operator_names()):
        operator = get_operator(name)
        places = (place for node in ast_nodes(get_ast(source)) for place in operator().mutation_positions(node))
        for number, (start, _) in enumerate(places):
            if any((n.lineno, n.col_offset) <= start < (n.end_lineno, n.end_col_offset) for n in notes):
                continue
            mutant = mutate_code(source, operator(), number)
            try:
                meaning = ast.dump(ast.parse(mutant))
            except SyntaxError:
                continue
            if meaning not in seen:
                seen.add(meaning)
                diff = difflib.unified_diff(source.splitlines(), mutant.splitlines(), n=0, lineterm='')
                yield mutant, list(diff)[2:]


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def exec_module(self, module) -> None:
        exec(compile(self.source, self.name, 'exec'), vars(module))


def run(module: str, source: str, tests: str) -> None:
    sys.meta_path.insert(0, Mutated(f'pyg_dnx.{module}', source))
    resource.setrlimit(resource.RLIMIT_CPU, (90, 90))  # an endless loop counts as killed
    resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    quick = settings(max_examples=50, derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate])
    settings.register_profile('mutation', quick)
    options = '-x -q -n 0 --tb=no --assert=plain -p no:cacheprovider --hypothesis-profile=mutation'
    os._exit(int(pytest.main([*options.split(), *map(str, (ROOT / 'tests').rglob(f'test_{tests}.py'))])))


def survives(module: str, source: str, tests: str) -> bool:
    child = multiprocessing.get_context('fork').Process(target=run, args=(module, source, tests))
    child.start()
    child.join(900)
    child.kill()
    child.join()
    return child.exitcode == 0


def judge(module: str, tests: list[str], killed: Path, item: tuple[str, list[str]]) -> bool:
    r"""Whether a mutant survives; those that don't are kept on file, to go on where it stopped."""
    mutant, diff = item
    digest = hashlib.sha256(mutant.encode()).hexdigest()
    if killed.exists() and digest in killed.read_text():
        return False
    if all(survives(module, mutant, name) for name in tests):
        print(module, *diff, sep='\n', flush=True)
        return True
    with killed.open('a') as file:
        file.write(digest + '\n')
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('modules', nargs='*', default=list(TESTS), metavar='module', help='by default all')
    parser.add_argument('--tests', help='the test files to run instead, by name')
    parser.add_argument('--jobs', type=int, default=2)
    args = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, 'src')
    folder = Path('build/mutation')
    folder.mkdir(parents=True, exist_ok=True)
    gc.freeze()
    for module in args.modules:
        source = Path(f'src/pyg_dnx/{module.replace(".", "/")}.py').read_text()
        tests = (args.tests or TESTS[module]).split()
        if not all(survives(module, source, name) for name in tests):
            sys.exit(f'the tests of {module} fail as it is')
        with ThreadPoolExecutor(args.jobs) as pool:
            survivors = list(pool.map(partial(judge, module, tests, folder / module), mutants(source)))
        total, killed = len(survivors), survivors.count(False)
        print(f'{module}: {killed} of {total} mutants killed, {killed / total:.1%}', flush=True)


if __name__ == '__main__':
    main()
