# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Every feature of decode attention against double precision: window, soft cap, head dims, also of V alone, page sizes, groups, caches, rows, sinks, ALiBi.

Each feature alone with its edges; attention_sweep.py has the combinations.
"""
import numpy as np

from kernel_build import Layout
from kernel_case import VALUES, Batch
from kernel_run import Suite


def main():
    suite = Suite(__doc__)
    attention = suite.attention

    def instance(arch=90, q_type=1, q_heads=4, kv_heads=2, head_dim=64, page_size=16, layout="nhd", cache_type=0, **more):
        return attention.add(arch=arch, q_type=q_type, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim,
                             page_size=page_size, cache_type=cache_type,
                             layout=Layout(layout, page_size, kv_heads, head_dim, 2 if cache_type >= 2 else 1, v_dim=more.get("v_head_dim")), **more)

    arches = (90, 80)
    window = {a: instance(a, has_window=1) for a in arches}
    split_window = {a: instance(a, has_window=1, num_splits=3, page_size=8) for a in arches}
    cap = {a: instance(a, has_soft_cap=1, q_type=0) for a in arches}
    dims = [instance(90 if d % 32 else 80, head_dim=d, q_heads=6, num_splits=2) for d in (80, 96, 112, 192, 256)]
    dims += [instance(80 if d % 32 else 90, head_dim=d, q_heads=8, kv_heads=1) for d in (80, 112, 192, 256)]
    # V with a head dim of its own.
    values = [instance(90, head_dim=192, v_head_dim=128, q_heads=8, kv_heads=1), instance(80, head_dim=192, v_head_dim=128, q_heads=4, num_splits=2, layout="packed"),
              instance(90, head_dim=128, v_head_dim=64, rows=4, has_window=1, layout="hnd", has_lse=0), instance(80, head_dim=64, v_head_dim=128, cache_type=1, q_type=0, page_size=4),
              instance(90, head_dim=80, v_head_dim=256, q_heads=12, kv_heads=1, layout="mixed", num_splits=3), instance(80, head_dim=112, v_head_dim=80, page_size=1),
              instance(90, head_dim=192, v_head_dim=128, cache_type=3, q_heads=8), instance(80, head_dim=64, v_head_dim=96, cache_type=2, q_type=0, layout="packed_head"),
              instance(90, head_dim=192, v_head_dim=128, runtime_strides=1, layout="packed"), instance(90, head_dim=96, v_head_dim=64, token_scales=2, num_splits=2),
              instance(90, head_dim=256, v_head_dim=64, page_size=256, q_type=2, out_type=3)]
    pages = [instance(90, head_dim=d, page_size=p) for d, p in ((128, 1), (64, 2), (80, 4), (128, 8), (256, 128), (64, 512))]
    groups = [instance(90, q_heads=g, kv_heads=1, head_dim=d) for g, d in ((17, 128), (32, 128), (40, 64), (71, 128), (128, 64), (20, 256))]
    groups.append(instance(80, q_heads=34, kv_heads=1, head_dim=128, num_splits=2))
    wide = {(c, d): instance(90 if c == 2 else 80, q_type=c - 2, cache_type=c, head_dim=d, q_heads=8, num_splits=s, has_lse=s - 1)
            for c, d, s in ((2, 64, 1), (2, 128, 2), (3, 128, 1), (3, 80, 2), (3, 256, 1), (2, 112, 1))}
    single = [instance(90, q_type=2, head_dim=128, q_heads=6), instance(80, q_type=2, num_splits=2)]
    rows = [instance(90, rows=2, q_heads=8, head_dim=128), instance(80, rows=4, q_heads=8, num_splits=3),
            instance(90, rows=8, q_heads=6, head_dim=64, num_splits=2), instance(90, rows=4, q_heads=16, kv_heads=2, head_dim=128),
            instance(80, rows=4, q_heads=3, kv_heads=1, head_dim=80, has_window=1, page_size=8),
            instance(90, rows=8, q_heads=2, kv_heads=1, has_window=1, has_soft_cap=1, num_splits=2, q_type=0),
            instance(90, rows=4, q_heads=8, kv_heads=2, q_type=1, cache_type=3)]
    codes = [instance(90, q_type=3, q_heads=8), instance(80, q_type=3, head_dim=80, num_splits=2), instance(90, q_type=4, out_type=4, has_soft_cap=1),
             instance(80, q_type=4, q_heads=160, out_type=2), instance(90, out_type=3, head_dim=128, num_splits=3), instance(80, out_type=3, rows=4),
             instance(90, q_type=2, out_type=0, head_dim=256), instance(80, q_type=3, cache_type=3, out_type=1), instance(90, q_type=4, cache_type=2, out_type=3)]
    sinks = [instance(90, has_sinks=1), instance(80, has_sinks=1, num_splits=3, q_heads=8, has_window=1, rows=2)]
    alibi = [instance(90, has_alibi=1, q_heads=16), instance(80, has_alibi=1, num_splits=3, rows=4, has_soft_cap=1),
             instance(90, has_alibi=1, has_sinks=1, has_window=1, head_dim=128, page_size=32)]
    per_head = [instance(90, per_head=1, kv_heads=3, q_heads=12, num_splits=2),
                instance(80, per_head=1, kv_heads=2, q_heads=80, has_soft_cap=1)]
    strided = [instance(90, runtime_strides=1, layout="packed", num_splits=2), instance(80, runtime_strides=1, layout="mixed", head_dim=80),
               instance(90, runtime_strides=1, layout="hnd", page_size=4, head_dim=128),
               instance(90, runtime_strides=1, page_size=256, head_dim=128, tile=16, stages=3)]
    attention.compile()

    for arch in arches:
        for w in (0, 3, 31, 32, 33, 128, 1000):
            suite.attend(f"window {w}", window[arch],
                         Batch(window[arch][1], [1, 5, 33, 64, 97, 300, 0, 161], [1, 2, 1, 1, 3, 2, 0, 1], seed=w, window=w))
        # Pages that end before the window are not read, and their entries hold nothing.
        batch = Batch(split_window[arch][1], [700, 90, 7], [2, 1, 1], window=300)
        for sequence, length in enumerate((700, 90, 7)):
            before = max(0, length - int(batch.queries[sequence]) - 300) // 8
            batch.table_used[sequence, :before], batch.table[sequence, :before] = False, -1
        suite.attend("window over splits, table entries before it unwritten", split_window[arch], batch)
        # One-off: V one-hot per token tells which tokens were seen.
        batch = Batch(window[arch][1], [5], window=3, v_scale=1)
        used = batch.slot_used
        batch.q[:], batch.v[used] = 0, 0
        for token in range(5):
            batch.set_code("v", 0, token, slice(None), token, 0x38)
        suite.attend("window 3, length 5, one-hot values", window[arch], batch)
        for c in (0.5, 30.0, 50.0):
            suite.attend(f"soft cap {c}", cap[arch], Batch(cap[arch][1], [1, 40, 200], softmax_scale=2.0, soft_cap=c))
    for n, i in enumerate(dims + pages + groups + single + strided + list(wide.values())):
        suite.attend("structure", i, Batch(i[1], [1, 17, 0, 100, 163], [1, 1, 1, 2, 1], seed=n), late=True)
    for n, i in enumerate(values):
        more = dict(window=20) if i[1]["has_window"] else dict()
        suite.attend("V's own head dim", i, Batch(i[1], [1, 17, 0, 100, 163], [1, 1, 1, 2, 3], seed=n, o_scale=0.01, **more), late=bool(n & 1))
    # A NaN in the last dims of K or of V, whichever has more.
    for i in values[1], values[3]:
        for which, dim in ("k", i[1]["head_dim"] - 1), ("v", i[1]["v_head_dim"] - 1):
            batch = Batch(i[1], [40, 9])
            batch.set_code(which, 0, 20, 0, dim, 0x7F)
            suite.attend(f"NaN in the last dim of {which}", i, batch)
    for n, i in enumerate(sinks + alibi):
        w, c = (40 if i[1]["has_window"] else None), (20.0 if i[1]["has_soft_cap"] else None)
        suite.attend("sinks and ALiBi", i, Batch(i[1], [1, 17, 0, 100, 263, 2], [1, 1, 1, 2, 3, 4], seed=n, window=w, soft_cap=c))
    for n, i in enumerate(per_head):
        suite.attend("scales of each KV head", i,
                     Batch(i[1], [1, 17, 0, 100, 263], seed=n, soft_cap=20.0 if i[1]["has_soft_cap"] else None))
    # Queries and outputs of other types; output codes saturate, and a NaN query code reaches its own head only.
    for n, i in enumerate(codes):
        cap = 20.0 if i[1]["has_soft_cap"] else None
        suite.attend("types of queries and outputs", i,
                     Batch(i[1], [1, 17, 0, 100, 163], [1, 1, 1, 2, 1], seed=n, soft_cap=cap, o_scale=0.002 if i[1]["out_type"] == 3 else 0.3))
        batch = Batch(i[1], [40, 9], seed=n, soft_cap=cap)
        batch.q[0, 1, 7] = np.nan
        suite.attend("NaN in a query", i, batch)
    for value in (-np.inf, 90.0):
        batch = Batch(sinks[0][1], [33, 0])
        batch.sinks[:] = value
        suite.attend(f"sinks of {value}", sinks[0], batch)
    for (cache, dim), i in wide.items():
        batch = Batch(i[1], [70, 20])
        batch.set_code("v", 0, 40, 1, 5, 0x7C00 if cache == 2 else 0x7F80)
        assert np.isinf(VALUES[cache][0x7C00 if cache == 2 else 0x7F80])
        suite.attend("infinity in V of a 16-bit cache", i, batch)
    for n, i in enumerate(rows):
        w, c = (9 if i[1]["has_window"] else None), (20.0 if i[1]["has_soft_cap"] else None)
        for lengths, queries in (([1, 7, 40, 200, 64], [1, 3, 8, 5, 2]), ([3, 33, 130], [5, 4, 19]), ([50] * 40, [1, 2, 0, 4] * 10)):
            suite.attend("rows share a CTA", i, Batch(i[1], lengths, queries, seed=n, window=w, soft_cap=c))
        # A NaN key that only later rows of the CTA see leaves the others alone.
        batch = Batch(i[1], [40, 9], [6, 1], window=w, soft_cap=c)
        batch.set_code("k", 0, 37, 0, 0, 0x7F if i[1]["cache_type"] < 2 else 0x7FC0)
        suite.attend("NaN behind the position of a row of the CTA", i, batch)
    suite.finish()


if __name__ == "__main__":
    main()
