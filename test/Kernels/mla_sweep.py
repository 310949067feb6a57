# REQUIRES: slow
# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Attention over latent caches over a grid of structures and lengths: every two values of two dimensions meet."""
import numpy as np

from attention_grid import pairwise
from kernel_case import LatentBatch
from kernel_run import Suite

DIMENSIONS = dict(
    heads=[1, 7, 8, 16, 20, 24, 32, 40, 64, 96, 128],
    # Cache and queries.
    cache=[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (1, 4), (2, 0), (2, 3), (3, 1), (3, 4), (4, 1), (4, 3)],
    out_type=[0, 1, 2, 3, 4],
    latent_dim=[256, 512],
    page_size=[1, 8, 16, 32, 64, 128],
    splits=[1, 2, 3, 5, 17, 32],
    rows=[1, 2, 4, 8],
    arch=[80, 90, 89],
    tile=[32, 64],
    gap=[0, 64],
    lengths=[0, 1, 2, 3],
)
LENGTHS = [([1, 7, 15, 16, 0, 17], None), ([54, 97, 256, 33], [1, 4, 1, 2]), ([463, 512, 3], [2, 1, 9]), ([1328], [3])]


def main():
    suite = Suite(__doc__)
    g = suite.builder.geometry

    def values_of(case):
        row = g.latent_row(case["cache"][0], case["latent_dim"], 64) + case["gap"]
        return dict(arch=case["arch"], q_type=case["cache"][1], cache_type=case["cache"][0], out_type=case["out_type"], heads=case["heads"], rows=case["rows"],
                    latent_dim=case["latent_dim"], page_size=case["page_size"], num_splits=case["splits"], tile=case["tile"], stages=2,
                    token_stride=row, page_stride=case["page_size"] * row)

    def legal(case):
        full = dict(heads=8, cache=(0, 0), out_type=0, latent_dim=512, page_size=16, splits=1, rows=1, arch=90, tile=32, gap=0)
        full.update({k: v for k, v in case.items() if k in full})
        try:
            suite.builder.mla("x", **values_of(full))
        except ValueError:
            return False
        return True

    runs = []
    for case in pairwise(DIMENSIONS, np.random.default_rng(11), legal):
        runs.append((suite.mla.add(has_lse=int(len(runs) % 4 > 0), **values_of(case)), case["lengths"]))
    for n, (instance, lengths) in enumerate(runs):
        batch = LatentBatch(instance[1], *LENGTHS[lengths], seed=n, o_scale=0.02)
        suite.attend(f"case {n}", instance, batch, late=bool(n & 1), quantum=(0, 7, 53)[n % 3], lse_error=2e-5)
    # Long contexts lose no accuracy.
    for cache_type in (0, 3, 4):
        instance = suite.mla.add(arch=90, q_type=1, heads=16, cache_type=cache_type, page_size=64, num_splits=32)
        suite.attend("long context", instance, LatentBatch(instance[1], [16384]))
    suite.finish()


if __name__ == "__main__":
    main()
