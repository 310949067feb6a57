# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Prefill: many query rows of a sequence on shared tiles of K and V, causal, windowed, chunked, ragged and mixed with decode, against double precision."""
from kernel_build import Layout
from kernel_case import Batch
from kernel_run import Suite


def main():
    suite = Suite(__doc__)

    def instance(arch=90, q_type=1, q_heads=4, kv_heads=2, head_dim=64, page_size=16, layout="nhd", **more):
        return suite.attention.add(prefill=1, arch=arch, q_type=q_type, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim,
                                   page_size=page_size, layout=Layout(layout, page_size, kv_heads, head_dim, 1, v_dim=more.get("v_head_dim")), **more)

    plain = [instance(90, q_heads=8, kv_heads=1, head_dim=128), instance(80, has_lse=0), instance(90, q_heads=3, kv_heads=1, head_dim=80, q_type=0),
             instance(80, q_heads=40, kv_heads=1, page_size=1), instance(90, q_heads=4, kv_heads=4, head_dim=256, layout="packed"),
             instance(90, q_heads=5, kv_heads=1, head_dim=112, page_size=128, layout="mixed"),
             instance(90, cache_type=1, q_type=2, head_dim=64), instance(89, q_heads=8, kv_heads=1, head_dim=128, has_lse=0), instance(80, cache_type=1, head_dim=96, layout="hnd"),
             # V with a head dim of its own.
             instance(90, q_heads=8, kv_heads=1, head_dim=192, v_head_dim=128), instance(80, head_dim=64, v_head_dim=80, layout="packed", cache_type=1),
             instance(90, q_heads=4, head_dim=96, v_head_dim=256, layout="hnd", q_type=2), instance(89, q_heads=6, head_dim=192, v_head_dim=64, has_lse=0)]
    window = [instance(90, q_heads=8, kv_heads=2, has_window=1), instance(80, q_heads=8, kv_heads=2, has_window=1, has_lse=0)]
    options = [instance(90, has_soft_cap=1, has_sinks=1, has_lse=0), instance(80, has_alibi=1), instance(90, has_alibi=1, has_window=1, has_sinks=1),
               instance(80, head_dim=128, v_head_dim=64, has_window=1, has_soft_cap=1)]
    codes = [instance(90, q_type=3, out_type=1), instance(80, q_type=4, out_type=3, head_dim=80), instance(80, q_type=3, head_dim=128, q_heads=8)]
    # Splits, and decode rows among prompts, whose warps share the steps of a tile.
    mixed = [instance(90, q_heads=8, kv_heads=1, head_dim=128, num_splits=3, has_lse=0), instance(80, num_splits=5, split_tokens=128),
             instance(90, q_heads=16, kv_heads=2, head_dim=64, num_splits=2, has_window=1), instance(90, q_heads=20, kv_heads=1, head_dim=256, num_splits=4),
             instance(90, q_heads=6, kv_heads=1, head_dim=80, num_splits=3, has_window=1, has_sinks=1, has_alibi=1, out_type=0),
             instance(80, q_heads=8, kv_heads=1, head_dim=128, has_soft_cap=1, num_splits=2),
             instance(90, q_heads=16, kv_heads=1, head_dim=192, v_head_dim=128, num_splits=2)]
    suite.attention.compile()

    for n, i in enumerate(mixed):
        more = dict(window=70 if i[1]["has_window"] else None, soft_cap=30.0 if i[1]["has_soft_cap"] else None)
        batch = Batch(i[1], [300, 1, 211, 64, 0, 129, 40, 2], [1, 1, 70, 2, 0, 9, 40, 3], seed=n, **more)
        suite.attend("decode among prompts", i, batch, late=bool(n & 1), launches=2, quantum=(0, 7, 53)[n % 3])
    # A graph captured once, replayed with other lengths and mixes.
    for lengths, queries in (([1, 0, 0], [1, 0, 0]), ([17, 450, 70], [1, 1, 70]), ([128, 64, 65], [4, 5, 33]), ([0, 0, 0], [1, 0, 0])):
        for i in mixed[:2]:
            suite.attend("replay", i, Batch(i[1], lengths, queries))

    for n, i in enumerate(plain):
        # Whole prompts, a chunk behind a prefix, decode rows between, more queries than tokens.
        suite.attend("prompts", i, Batch(i[1], [40, 1, 133], [40, 1, 133], seed=n))
        suite.attend("chunks and decode", i, Batch(i[1], [200, 77, 0, 65, 30], [70, 1, 0, 1, 33], seed=n), late=True)
    for i in window:
        for w in (0, 16, 63, 100):
            suite.attend(f"window {w}", i, Batch(i[1], [150, 300, 20], [150, 70, 20], window=w))
    # A chunk far behind the start: tiles before the window of its first row are skipped, those of later rows masked.
    suite.attend("window 333 of 300 rows, 4096 keys", window[0], Batch(window[0][1], [4096], [300], window=333))
    for n, i in enumerate(options):
        suite.attend("options", i, Batch(i[1], [90, 150, 1], [90, 20, 1], seed=n, window=37 if i[1]["has_window"] else None,
                                         soft_cap=20.0 if i[1]["has_soft_cap"] else None))
    for n, i in enumerate(codes):
        suite.attend("FP8 queries and outputs", i, Batch(i[1], [40, 77, 0], [40, 20, 0], seed=n, o_scale=0.01))
    # NaN in a key or value that some rows see.
    for i in plain[:2]:
        for which in "kv":
            batch = Batch(i[1], [80, 40], [5, 40])
            batch.set_code(which, 0, 20, 0, 3, 0x7F)
            suite.attend(f"NaN in {which}", i, batch)
    suite.finish()


if __name__ == "__main__":
    main()
