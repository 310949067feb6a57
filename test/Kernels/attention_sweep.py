# REQUIRES: slow
# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Attention over combinations in pairs, every two values of two dimensions meet: of all features, and of the grids that other suites have."""
import numpy as np

from attention_grid import pairwise
from kernel_build import Layout
from kernel_case import Batch
from kernel_run import Suite

DIMENSIONS = dict(
    group=[1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 17, 28, 32, 64, 71, 128],
    head_dim=[64, 80, 96, 112, 128, 192, 256],
    page_size=[1, 2, 4, 8, 16, 32, 64, 128, 256],
    layout=["nhd", "hnd", "packed", "packed_head", "mixed"],
    types=[(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 3)],  # of queries and cache
    splits=[1, 2, 3, 5, 17, 32],
    kv_heads=[1, 2, 3],
    arch=[90, 80, 89],
    rows=[1, 2, 3, 4, 8],
    window=[None, 0, 3, 128, 1023],
    soft_cap=[None, 30.0, 50.0],
    extra=["", "sinks", "alibi", "both", "per_head", "strides"],
    lengths=[0, 1, 2, 3],
)
LENGTHS = [
    ([1, 7, 15, 16, 0, 17], None),
    ([54, 97, 256, 33], [1, 4, 1, 2]),
    ([463, 512, 3], [2, 1, 5]),
    ([1328, 40], [9, 3]),
]
# What the suites of public kernels cover: heads of real models, lengths up to 16,384, batches up to 128.
PUBLIC = dict(
    heads=[(4, 4), (8, 2), (5, 1), (28, 4), (24, 4), (64, 8), (64, 4), (96, 8)],
    length=[1, 7, 15, 16, 17, 54, 97, 256, 463, 512, 1328, 2048, 16384],
    batch=[1, 2, 7, 17, 128],
    head_dim=[64, 80, 128, 256],
    page_size=[1, 8, 16, 32, 64, 128],
    layout=["nhd", "hnd", "packed"],
    window=[None, 3, 128, 1023],
    soft_cap=[None, 30.0, 50.0],
    sinks=[0, 1],
    cache_type=[0, 1],
    splits=[1, 2, 3, 5, 17, 32],
    arch=[90, 80],
)


def sweep_public(suite, rng):
    runs = []
    for case in pairwise(PUBLIC, rng, lambda c: True):
        (q_heads, kv_heads), page, dim = case["heads"], case["page_size"], case["head_dim"]
        runs.append((suite.attention.add(
            arch=case["arch"], q_type=1, cache_type=case["cache_type"], q_heads=q_heads, kv_heads=kv_heads, head_dim=dim,
            page_size=page, num_splits=case["splits"], has_lse=int(rng.integers(2)), has_window=int(case["window"] is not None),
            has_soft_cap=int(case["soft_cap"] is not None), has_sinks=case["sinks"],
            layout=Layout(case["layout"], page, kv_heads, dim)), case))
    for n, (instance, case) in enumerate(runs):
        # One sequence of the length; the others are of any that is not longer, and short where they are many.
        others = [length for length in PUBLIC["length"] if length <= min(case["length"], 4096 // case["batch"])] or [1]
        lengths = [case["length"], *rng.choice(others, case["batch"] - 1)]
        batch = Batch(instance[1], lengths, seed=n, window=case["window"], soft_cap=case["soft_cap"])
        suite.attend(f"public case {n}", instance, batch, late=bool(n & 1), quantum=(0, 7, 53)[n % 3])


def main():
    suite = Suite(__doc__)
    rng = np.random.default_rng(11)
    sweep_public(suite, np.random.default_rng(12))
    runs = []
    for case in pairwise(DIMENSIONS, rng, lambda c: True):
        q_type, cache_type = case["types"]
        values = dict(arch=case["arch"], q_type=q_type, cache_type=cache_type, q_heads=case["group"] * case["kv_heads"],
                      kv_heads=case["kv_heads"], head_dim=case["head_dim"], page_size=case["page_size"], rows=case["rows"],
                      num_splits=case["splits"], has_lse=int(rng.integers(4) > 0), has_window=int(case["window"] is not None),
                      has_soft_cap=int(case["soft_cap"] is not None), has_sinks=int(case["extra"] in ("sinks", "both")),
                      has_alibi=int(case["extra"] in ("alibi", "both")), per_head=int(case["extra"] == "per_head"),
                      runtime_strides=int(case["extra"] == "strides"),
                      layout=Layout(case["layout"], case["page_size"], case["kv_heads"], case["head_dim"],
                                    2 if cache_type >= 2 else 1))
        try:
            instance = suite.attention.add(**values)
        except ValueError as refused:  # 16-bit rows beyond 256 bytes on 99 KB machines
            suite.check(f"refused: {refused}", [] if cache_type >= 2 and case["arch"] == 89 else [str(refused)])
            continue
        runs.append((instance, case))
    for n, (instance, case) in enumerate(runs):
        batch = Batch(instance[1], *LENGTHS[case["lengths"]], seed=n, window=case["window"], soft_cap=case["soft_cap"])
        suite.attend(f"case {n}", instance, batch, late=bool(n & 1), quantum=(0, 7, 53)[n % 3])
    suite.finish()


if __name__ == "__main__":
    main()
