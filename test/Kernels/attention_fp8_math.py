# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""fp8-math: queries and probabilities in e4m3, products of codes.

Every output is judged twice: against double precision, with the error that
rounding P to e4m3 may have (2^-4 of each |p v|), and against P rounded the same
way, with that of f16-math (2^-9). Queries are rounded in both.
"""
import numpy as np

from kernel_build import Layout
from kernel_case import VALUES, Batch
from kernel_run import Suite


def main():
    suite = Suite(__doc__)
    attention = suite.attention

    def instance(arch=89, q_type=1, q_heads=4, kv_heads=2, head_dim=64, page_size=16, layout="nhd", **more):
        return attention.add(arch=arch, q_type=q_type, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, page_size=page_size,
                             layout=Layout(layout, page_size, kv_heads, head_dim), math=1, **more)

    plain = [instance(head_dim=128, q_heads=16), instance(120, q_type=0, layout="packed", num_splits=3, has_lse=0)]
    types = [instance(q_type=q, cache_type=c, q_heads=8, num_splits=1 + (q == 2)) for q, c in ((2, 0), (3, 0), (4, 0), (0, 1), (3, 1), (4, 1))]
    dims = [instance(120, head_dim=d, q_heads=6, num_splits=1 + d % 3) for d in (80, 96, 112, 192, 256)]
    shapes = [instance(q_heads=71, kv_heads=1, head_dim=128), instance(120, q_heads=64, kv_heads=2, head_dim=128, layout="hnd"),
              instance(rows=4, q_heads=16, head_dim=128, out_type=3), instance(120, rows=8, q_heads=6, page_size=4, has_lse=0),
              instance(q_heads=40, kv_heads=1, head_dim=256, q_type=2), instance(tile=16, stages=4, unroll=4, out_type=2),
              instance(120, runtime_strides=1, layout="mixed", head_dim=80), instance(per_head=1, kv_heads=3, q_heads=12, num_splits=2)]
    features = [instance(has_window=1, num_splits=2), instance(120, has_soft_cap=1, has_lse=0), instance(has_sinks=1, has_alibi=1, rows=2)]
    attention.compile()

    for n, i in enumerate(plain + types + dims + shapes + features):
        batch = Batch(i[1], [1, 17, 0, 100, 463, 33], [1, 1, 1, 2, 1, 3], seed=n, window=40 if i[1]["has_window"] else None,
                      soft_cap=20.0 if i[1]["has_soft_cap"] else None, softmax_scale=0.3 if n % 2 else None, o_scale=0.01)
        suite.attend("structure", i, batch, late=bool(n & 1), quantum=(0, 7, 53)[n % 3], launches=1 + (n < 2))
    for i in plain:
        for k_scale, v_scale in ((0.25, 0.5), (0.003, 0.0123), (3.0, 100.0)):
            suite.attend(f"scales {k_scale} {v_scale}", i, Batch(i[1], [70, 300], k_scale=k_scale, v_scale=v_scale, seed=2))
        for size in (1e-30, 1e-3, 1e6, 1e30) if i[1]["q_type"] == 1 else (2.0**-20, 60000):
            batch = Batch(i[1], [200], softmax_scale=min(1 / size, 1e20) * i[1]["head_dim"]**-0.5)
            batch.q *= size / max(1, np.abs(batch.q[:batch.total]).max() / 1.0) if size == 60000 else size
            batch.q[:batch.total, 3] = 0
            suite.attend(f"|q| about {size:g}", i, batch, lse_error=3e-5)
        # Every tile raises the reference; and every tile lowers the scores.
        for rising in (True, False):
            batch = Batch(i[1], [600], k_scale=1)
            batch.q[:] = 1
            level = np.arange(600) / 600 if rising else np.arange(600)[::-1] / 600
            codes = np.abs(VALUES[0][:127][None] - 56 * level[:, None] ** 2).argmin(1)
            batch.k[batch.slot_used] = 0
            for token, code in enumerate(codes):
                batch.set_code("k", 0, token, slice(None), slice(0, 16), code)
            suite.attend("rising scores" if rising else "falling scores", i, batch)
        # NaN in valid data: in K the whole KV head, in V one dim of it.
        for which, token, code in (("k", 5, 0x7F), ("k", 99, 0xFF), ("v", 64, 0x7F), ("v", 99, 0xFF)):
            batch = Batch(i[1], [100, 100])
            batch.set_code(which, 0, token, 1, 9, code)
            suite.attend(f"NaN in {which} at token {token}", i, batch)
        batch = Batch(i[1], [40, 12])
        batch.q[0, 1, 3] = np.nan
        suite.attend("NaN in one query head", i, batch)
        batch = Batch(i[1], [512], seed=4)
        rng = np.random.default_rng(1)
        finite = np.flatnonzero(np.isfinite(VALUES[0])).astype(np.uint8)
        for codes in (batch.k, batch.v):
            codes[batch.slot_used] = rng.choice(finite, codes[batch.slot_used].shape)
        batch.q *= 0.01
        suite.attend("all finite codes", i, batch)
    suite.finish()


if __name__ == "__main__":
    main()
