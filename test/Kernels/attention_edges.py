# RUN: %python %s --machine=%ptx_lib --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Edges of attention: empty rows, poison, page-table tails, NaN in valid data, large offsets, every group.

Each block is a fault seen in public kernels, or one of its kind.
"""
import numpy as np

from kernel_build import Layout
from kernel_case import SENTINELS, VALUES, Batch
from kernel_run import Suite

NAN = 0x7F


def main():
    suite = Suite(__doc__)
    attention, layouts = suite.attention, {}

    def instance(arch=90, q_type=1, q_heads=4, kv_heads=2, head_dim=64, page_size=16, layout="nhd", **more):
        key = (layout, page_size, kv_heads, head_dim)
        lay = layouts.setdefault(key, Layout(*key))
        return attention.add(arch=arch, q_type=q_type, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim,
                             page_size=page_size, layout=lay, **more)

    arches = (90, 80)
    small = {a: instance(a) for a in arches}
    split = {a: instance(a, num_splits=3) for a in arches}
    groups = [instance(90 if g % 2 else 80, q_heads=g, kv_heads=1, head_dim=128) for g in range(1, 17)]
    big_tile = {a: instance(a, page_size=32, head_dim=128, tile=16, stages=4, q_heads=8) for a in arches}
    wide_tile = instance(head_dim=256, page_size=32, tile=16, stages=2, q_heads=2)
    smallest_ring = instance(head_dim=128, page_size=64, tile=16, stages=2, q_heads=8, kv_heads=1)
    one_stage_short = [instance(a, head_dim=d, q_heads=16, kv_heads=1, tile=16, stages=2) for a in arches for d in (64, 128)]
    heads_wide = instance(q_heads=64, kv_heads=32, head_dim=128, page_size=64)  # 8 KiB between the tokens of a head
    attention.compile()

    for arch in arches:
        # NaN in every unused slot, lengths 1 and 3: must not reach the output.
        suite.attend("unused slots hold NaN", small[arch], Batch(small[arch][1], [1, 3]))
        suite.attend("table tail holds huge and negative ids", small[arch], Batch(small[arch][1], [17], spare_pages=6))
        # The length is no multiple of the pages in the table.
        suite.attend("more page ids than the length needs", small[arch], Batch(small[arch][1], [32], max_pages=3))
        suite.attend("a padded sequence of length 0", small[arch], Batch(small[arch][1], [33, 33, 33, 0]))
        suite.attend("only empty sequences", small[arch], Batch(small[arch][1], [0, 0]))
        suite.attend("only empty sequences, several splits", split[arch], Batch(split[arch][1], [0, 0, 0]))
        suite.attend("no rows at all", small[arch], Batch(small[arch][1], [5, 9], [0, 0]))
        # Query i of n sits at length - n + i: the first three rows see nothing.
        suite.attend("more queries than tokens", small[arch], Batch(small[arch][1], [2, 40], [5, 1]))
        suite.attend("causal rows", small[arch], Batch(small[arch][1], [20, 35, 3], [18, 3, 3]))
        suite.attend("causal rows over splits", split[arch], Batch(split[arch][1], [130, 300], [5, 2]))
        suite.attend("sequences without queries between others", small[arch],
                     Batch(small[arch][1], [9, 30, 12, 44], [1, 0, 0, 2]))
        suite.attend("tile shorter than the page", big_tile[arch], Batch(big_tile[arch][1], [100, 31, 129]))
        suite.attend("128 sequences", small[arch], Batch(small[arch][1], [(7 * i) % 20 for i in range(128)]))
        suite.attend("more than 32 sequences", small[arch], Batch(small[arch][1], [(7 * i) % 40 for i in range(70)]))

    suite.attend("V's tile is no multiple of the page", wide_tile, Batch(wide_tile[1], [100]))
    suite.attend("the smallest ring", smallest_ring, Batch(smallest_ring[1], [100, 1]))
    for instance_ in groups:
        # No spare row behind the last: a read of a padding head is out of bounds.
        suite.attend("every group, no padding row leaks", instance_, Batch(instance_[1], [17, 80], seed=3, rows=2))
    for instance_ in one_stage_short:
        suite.attend("merge buffer as large as the ring", instance_, Batch(instance_[1], [70]))
    suite.attend("rows 8 KiB apart", heads_wide, Batch(heads_wide[1], [150, 3]))

    # NaN in valid data reaches its own sequence and nothing else; in K the whole
    # KV head, in V one dim of it (the reference says which).
    for arch in arches:
        for which, token, code in (("k", 5, NAN), ("k", 99, 0xFF), ("v", 5, NAN), ("v", 99, 0xFF), ("v", 64, NAN)):
            batch = Batch(small[arch][1], [100, 100], [1, 1])
            batch.set_code(which, 0, token, 1, 9, code)
            suite.attend(f"NaN in {which} at token {token}", small[arch], batch)
            batch = Batch(split[arch][1], [300, 100], [2, 1])
            batch.set_code(which, 0, token, 1, 9, code)
            suite.attend(f"NaN in {which} at token {token}, several splits", split[arch], batch)
        # Causal rows before the NaN do not see it.
        batch = Batch(small[arch][1], [40], [6])
        batch.set_code("k", 0, 37, 0, 0, NAN)
        suite.attend("NaN behind the position of a row", small[arch], batch)
        batch = Batch(small[arch][1], [40, 12])
        batch.q[0, 1, 3] = np.nan
        suite.attend("NaN in one query head", small[arch], batch)

    # A null page 0 full of NaN, which entries of sequences that are padding name, or -1.
    for arch in arches:
        for entry in (0, -1):
            batch = next(b for b in (Batch(small[arch][1], [31, 16, 0], spare_pages=4, seed=s) for s in range(64))
                         if 0 not in b.table[b.table_used])
            batch.table[~batch.table_used] = entry
            batch.table_used[:] = True
            suite.attend(f"null page 0 of NaN, unused entries {entry}", small[arch], batch)

    # Offsets beyond 2^31 and 2^32: pages 512 MiB apart in a pool that is virtual
    # but for what the batch uses.
    far = Layout("nhd", 16, 2, 64)
    far.k = far.v = (1 << 29, 128, 64)
    far.name = "nhd, 512 MiB pages"
    for arch in arches:
        wide = attention.add(arch=arch, q_type=1, q_heads=4, kv_heads=2, head_dim=64, page_size=16, layout=far)
        near = Batch(dict(wide[1], layout=layouts["nhd", 16, 2, 64]), [100, 40], spare_pages=1)
        pools = [np.zeros(near.pages << 29, np.uint8) for _ in range(2)]
        for pool, codes in zip(pools, (near.k, near.v)):
            for page in range(near.pages):
                pool[page << 29:(page << 29) + 16 * 128] = codes[page].reshape(-1)
        suite.attend("offsets beyond 32 bits", wide, near, pools=(pools, None))
        del pools

    # A length past the table's capacity is cut, not followed into the next row.
    batch = Batch(small[90][1], [32, 20], max_pages=2)
    batch.lengths[0] = 1000
    result, findings = attention.run(small[90], batch)
    batch.lengths[0] = 32
    suite.check("length past the page table", result.problems() + findings)

    # Rows before query_start[0] belong to no sequence.
    for sequences in (2, 40):
        batch = Batch(small[90][1], [20] * sequences, rows=sequences + 3)
        batch.query_start += 2
        batch.total, batch.q[:] = sequences + 2, 1
        result, findings = attention.run(small[90], batch)
        written = (result.out != SENTINELS[1]).any(axis=(1, 2))
        expected = [False] * 2 + [True] * sequences + [False]
        suite.check("rows before the first sequence stay untouched", findings + ["other rows"] * any(written != expected))

    # e5m2: infinities are IEEE.
    for arch in arches:
        e5m2 = attention.add(arch=arch, q_type=0, q_heads=6, kv_heads=2, head_dim=64, page_size=16, cache_type=1,
                             layout=layouts["nhd", 16, 2, 64])
        suite.attend("e5m2", e5m2, Batch(e5m2[1], [1, 77, 200]))
        batch = Batch(e5m2[1], [77, 20])
        batch.set_code("v", 0, 40, 1, 5, 0x7C)
        suite.attend("e5m2 infinity in V", e5m2, batch)
    assert np.isinf(VALUES[1][0x7C])
    suite.finish()


if __name__ == "__main__":
    main()
