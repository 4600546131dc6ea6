r"""What explanations cost: a table of ratios, each measured side by side in one run.

    python examples/benchmark/run.py                      # all parts: 15 minutes on two cores, 12 GB of memory
    python examples/benchmark/run.py --quick              # the same on smaller graphs and with fewer repeats: minutes
    python examples/benchmark/run.py --parts calls kernels

Bars are in the last column. Results go to `--out` as JSON, with a picture of cost against size.
"""

import argparse
import warnings

import calls
import common
import distillation
import first
import kernels
import molecules
import products
import ranks
import scaling
import verdicts

from pyg_dnx import SurrogateWarning, shared_cache

PARTS = {
    'calls': calls,
    'kernels': kernels,
    'distillation': distillation,
    'first': first,
    'scaling': scaling,
    'products': products,
    'ranks': ranks,
    'molecules': molecules,
    'verdicts': verdicts,
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('--parts', nargs='+', choices=PARTS, default=list(PARTS))
parser.add_argument('--root', default='data/planetoid', help='where Planetoid is, or is downloaded to')
parser.add_argument('--data', help="the folder of the paper's graphs as .npz files, to time calls on them too")
parser.add_argument('--out', default='benchmark', help='the folder for results')
parser.add_argument('--repeats', type=int, default=200, help='of quick calls; slow ones are repeated less often')
parser.add_argument('--quick', action='store_true')
args = parser.parse_args()
if args.quick:
    args.repeats = min(args.repeats, 40)
warnings.simplefilter('ignore', SurrogateWarning)

for name in args.parts:
    common.save(args.out, name, PARTS[name].run(args))
    shared_cache.clear()
    print()
