# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Attention over a grid of structures and lengths agrees with double precision.

Structures are covered in pairs: every two values of two dimensions meet.
"""
import itertools

import numpy as np

from kernel_build import Layout
from kernel_case import Batch
from kernel_run import Suite

DIMENSIONS = dict(
    group=list(range(1, 17)),
    head_dim=[64, 128],
    page_size=[16, 32, 64, 128],
    layout=["nhd", "hnd", "packed", "packed_head", "mixed"],
    q_type=[0, 1],
    splits=[1, 2, 3, 5],
    kv_heads=[1, 2, 3],
    arch=[90, 80],
    tuning=["default", "16x2u", "16x4", "32x3", "32x3u"],
    lengths=[0, 1, 2],
)
LENGTHS = [
    ([1, 7, 15, 16, 0, 17], None),
    ([54, 97, 256, 33], [1, 4, 1, 2]),
    ([463, 512, 3], [2, 1, 5]),
]


def legal(case):
    """For a case or two values of one."""
    tuning = case.get("tuning", "default")
    tile = int(tuning.split("x")[0]) if tuning != "default" else 32
    return 4 * tile % case.get("page_size", 16) == 0


def pairwise(dimensions, rng, legal):
    """Cases so that each pair of values of two dimensions occurs: greedy, with random candidates."""
    names = list(dimensions)
    missing = {(a, x, b, y) for a, b in itertools.combinations(names, 2) for x in dimensions[a] for y in dimensions[b]}
    missing = {m for m in missing if legal({m[0]: m[1], m[2]: m[3]})}
    cases = []
    while missing:
        seed = sorted(missing, key=str)[rng.integers(len(missing))]
        best, gain = None, -1
        for _ in range(40):
            case = {n: dimensions[n][rng.integers(len(dimensions[n]))] for n in names}
            case[seed[0]], case[seed[2]] = seed[1], seed[3]
            if not legal(case):
                continue
            n = sum((a, case[a], b, case[b]) in missing for a, b in itertools.combinations(names, 2))
            if n > gain:
                best, gain = case, n
        if best is None:
            continue
        cases.append(best)
        missing -= {(a, best[a], b, best[b]) for a, b in itertools.combinations(names, 2)}
    return cases


def main():
    suite = Suite(__doc__)
    rng = np.random.default_rng(7)
    runs = []
    for case in pairwise(DIMENSIONS, rng, legal):
        values = dict(arch=case["arch"], q_type=case["q_type"], q_heads=case["group"] * case["kv_heads"],
                      kv_heads=case["kv_heads"], head_dim=case["head_dim"], page_size=case["page_size"],
                      num_splits=case["splits"], has_lse=int(rng.integers(4) > 0),
                      layout=Layout(case["layout"], case["page_size"], case["kv_heads"], case["head_dim"]))
        if case["tuning"] != "default":
            tile, stages = case["tuning"].rstrip("u").split("x")
            values.update(tile=int(tile), stages=int(stages), unroll=int(stages) if case["tuning"].endswith("u") else 1)
        runs.append((suite.attention.add(**values), case["lengths"]))
    for n, (instance, lengths) in enumerate(runs):
        batch = Batch(instance[1], *LENGTHS[lengths], seed=n)
        suite.attend(f"case {n}", instance, batch, late=bool(n & 1), quantum=(0, 7, 53)[n % 3])
    suite.finish()


if __name__ == "__main__":
    main()
