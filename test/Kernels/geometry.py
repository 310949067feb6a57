# RUN: %python %s --llvm=%llvm_bin --work=%t

"""Geometry.h: defaults fit their machines, splits follow the capacities, workspace sizes do not overflow."""
import argparse
import itertools
import os
import random
import sys

from kernel_build import Geometry

HERE = os.path.dirname(os.path.abspath(__file__))
SHARED_PER_CTA = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llvm", required=True)
    parser.add_argument("--work", required=True)
    options = parser.parse_args()
    os.environ["KVCACHE_LLVM_BIN"] = options.llvm
    os.makedirs(options.work, exist_ok=True)
    g = Geometry(os.path.join(HERE, "..", "..", "kernels"), options.work)
    passed, failures = 0, []

    def expect(condition, text):
        nonlocal passed
        if condition:
            passed += 1
        else:
            failures.append(text)

    def values(arch, dim, group, page, rows=1, cache=0, q_type=1, v_head_dim=None, **more):
        v = dict(arch=arch, q_type=q_type, cache_type=cache, q_heads=group, kv_heads=1, head_dim=dim, page_size=page, rows=rows,
                 num_splits=4, has_window=0, math=0, token_scales=0, v_head_dim=v_head_dim or dim)
        t = g.tuning(arch, dim, g.columns_of(v), page, g.cache_bytes(cache), q_type, v_head_dim=v_head_dim)
        v.update(tile=t["tile"], stages=t["stages"], unroll=t["unroll"], min_ctas=t["min_ctas"])
        v["split_tokens"] = g.granule(v["tile"], page)
        v.update(more)
        return v

    # The defaults are legal for every combination, fit the machine and the merge.
    for arch, limit in SHARED_PER_CTA.items():
        for dim in (64, 80, 96, 112, 128, 192, 256):
            for group, rows in [(n, 1) for n in range(1, 17)] + [(24, 1), (71, 1), (128, 1), (1, 8), (8, 2), (4, 4), (5, 3)]:
                for page in (1, 8, 16, 32, 64, 128, 1024):
                    for cache, q_type in ((0, 1), (1, 0), (2, 0), (3, 1), (0, 2)):
                        v = values(arch, dim, group, page, rows, cache, q_type)
                        problem = g.problem_of(v)
                        # Two stages of 16-bit rows above 256 bytes need more than 99 KB.
                        if limit < 1 << 17 and cache >= 2 and dim > 128:
                            expect(problem == "the rings exceed the shared memory of a CTA", f"{v} is refused")
                            continue
                        expect(problem is None, f"{v} is legal: {problem}")
                        shared, columns = g.shared_of(v), g.columns_of(v)
                        expect(shared <= limit, f"{v} needs {shared} bytes, the limit is {limit}")
                        expect(g.ctas(arch, shared) >= v["min_ctas"], f"{v} fits minCtasPerSM by shared memory")
                        # K and V rings of four warps; f32 merge of four warps, padding columns included.
                        row = dim * g.cache_bytes(cache)
                        expect(shared >= 4 * v["stages"] * 2 * v["tile"] * row, f"{v} has room for the rings")
                        expect(shared >= 4 * -(-columns // 8) * 8 * dim * 4, f"{v} has room for the merge")

    # V with a head dim of its own: legal for every pair, with room for rings and merge.
    for arch, limit in SHARED_PER_CTA.items():
        for dim, v_dim in itertools.permutations((64, 80, 96, 112, 128, 192, 256), 2):
            for group, rows in ((1, 1), (4, 1), (8, 1), (16, 1), (71, 1), (4, 4), (1, 8)):
                for cache, q_type in ((0, 1), (1, 0), (3, 1), (0, 2)):
                    v = values(arch, dim, group, 16, rows, cache, q_type, v_head_dim=v_dim)
                    if rows > 1 and rows * group > 8 * min(4, 512 // v_dim):
                        continue
                    problem, columns, size = g.problem_of(v), g.columns_of(v), g.cache_bytes(cache)
                    if limit < 1 << 17 and problem == "the rings exceed the shared memory of a CTA":
                        expect(max(dim, v_dim) * size > 256, f"{v} is refused")
                        continue
                    shared = g.shared_of(v)
                    expect(problem is None and shared <= limit, f"{v} is legal, {shared} bytes: {problem}")
                    expect(shared >= 4 * v["stages"] * v["tile"] * (dim + v_dim) * size, f"{v} has room for the rings")
                    expect(shared >= 4 * -(-columns // 8) * 8 * v_dim * 4, f"{v} has room for the merge")

    # Head blocks: no head is lost, and no block is idle.
    for dim in (64, 128, 256):
        for group in range(1, 129):
            heads = g.heads(group, 1, dim)
            blocks = g.grid_x(group, 1, 1, dim)
            expect(heads * blocks >= group > heads * (blocks - 1), f"D{dim} group {group}: {blocks} blocks of {heads} heads")
            expect(heads <= (32 if dim <= 128 else 16), f"D{dim} group {group}: {heads} heads in a CTA")

    # Rows that share a CTA: as many as a sequence has at capacity, within the columns; 1 for plain decode.
    for group, dim, tokens, sequences, want in ((8, 128, 64, 64, 1), (8, 128, 256, 64, 4), (8, 128, 192, 64, 4), (8, 128, 65, 64, 2),
                                                (4, 64, 4096, 64, 8), (32, 128, 256, 64, 1), (8, 256, 512, 64, 2), (1, 64, 9, 2, 8)):
        expect(g.choose_rows(group, dim, tokens, sequences) == want,
               f"{tokens} tokens of {sequences} sequences, group {group}: {g.choose_rows(group, dim, tokens, sequences)} rows, expected {want}")
    # Every block of rows has a CTA of its own, whatever the sequences' lengths.
    rng = random.Random(1)
    for _ in range(300):
        rows, queries = rng.choice((2, 4, 8)), [rng.randrange(12) for _ in range(rng.randrange(1, 9))]
        start, taken = rng.randrange(4), set()
        for s, n in enumerate(queries):
            blocks = {start // rows + s + b for b in range(-(-n // rows))}
            expect(not blocks & taken, f"{queries} in blocks of {rows}: two blocks share an index")
            taken, start = taken | blocks, start + n
        expect(max(taken, default=0) < g.row_blocks(start, len(queries), rows), f"{queries} in blocks of {rows}: beyond the grid")

    base = values(90, 128, 4, 16)
    refused = [dict(q_heads=129), dict(q_heads=6, kv_heads=4), dict(head_dim=72), dict(head_dim=48), dict(v_head_dim=72), dict(page_size=48),
               dict(page_size=0), dict(stages=1), dict(stages=7), dict(stages=3, unroll=2), dict(stages=3, unroll=3, has_window=1),
               dict(split_tokens=100), dict(split_tokens=0), dict(num_splits=0), dict(num_splits=65), dict(tile=64, split_tokens=256),
               dict(rows=9), dict(rows=0), dict(cache_type=2), dict(cache_type=3, q_type=0),
               dict(cache_type=3, head_dim=256, tile=32, split_tokens=128), dict(arch=89, head_dim=256, tile=32, split_tokens=128)]
    for case in refused:
        expect(g.problem_of(dict(base, **case)), f"{case} is refused")
    expect(g.problem_of(base) is None, f"{base} is not")

    def splits(rows, pages, kv_heads=8):
        v = values(90, 128, 8, 64)
        return g.choose_splits(90, g.shared_of(v), 64, 32, kv_heads, rows, pages * 64)

    one_long, many = splits(1, 1024), splits(128, 32)
    expect(one_long[1] >= 16, f"one sequence of 64k tokens is split over the machine: {one_long}")
    expect(many[1] == 1, f"128 sequences fill the machine alone: {many}")
    expect(splits(1, 2)[1] == 1, "128 tokens are not split")
    expect(all(splits(r, p)[0] % 128 == 0 for r in (1, 7, 300) for p in (1, 5, 4096)), "splits are whole tiles and pages")
    expect(splits(1, 1 << 20)[1] <= 64, "at most 64 splits")

    # Prefill: a whole number of rows a warp, within the columns and the machine.
    for arch, limit in SHARED_PER_CTA.items():
        for dim in (64, 80, 96, 112, 128, 192, 256):
            for group in (1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 71, 128):
                warps = g.prefill_warps(arch, 1, 0, group, 1, dim, dim, 16)
                expect(warps in (2, 4, 8) or (limit < 1 << 17 and dim > 128), f"sm_{arch} D{dim} group {group}: {warps} warps")
                columns = g.prefill_columns(group, dim)
                expect(0 < columns <= (32 if dim <= 128 else 16), f"D{dim} group {group}: {columns} columns a warp")
                expect(g.prefill_rows(group, dim, 4) * g.heads(group, 1, dim) == 4 * columns, f"D{dim} group {group}: rows of a CTA")
                expect(not warps or g.prefill_shared(dim, dim, columns, 1, warps) <= limit, f"sm_{arch} D{dim} group {group} fits")
    expect(g.prefill_warps(90, 1, 3, 8, 1, 128, 128, 16) == 0, "no prefill for caches that are not quantized")

    # A chunk of few rows behind a long context is split over the machine, a batch that fills it is not.
    def prefill_splits(tokens, keys, kv_heads):
        shared = g.prefill_shared(128, 128, 32, 1, 8)
        return g.choose_splits(90, shared, 256, 8, kv_heads, g.row_blocks(tokens, 1, 32), keys, function="g_prefill_splits")

    expect(prefill_splits(512, 131072, 1)[1] in range(6, 9), f"17 blocks over 131,072 keys: {prefill_splits(512, 131072, 1)}")
    expect(prefill_splits(8192, 131072, 8)[1] == 1, f"2,056 blocks are enough: {prefill_splits(8192, 131072, 8)}")
    expect(prefill_splits(512, 256, 1)[1] <= 2 and prefill_splits(512, 256, 1)[0] == 128, f"256 keys: {prefill_splits(512, 256, 1)}")

    # Sizes beyond 32 bits; nothing is needed without splits.
    expect(g.partials(8, 65535, 8, 128, 64) == 4 * 65535 * 8 * 64 * (8 * 128 + 16), "partials in 64 bits")
    expect(g.partials(8, 8, 8, 128, 1) == 0 and g.counters(8, 8, 1) == 0, "no workspace with one split")
    expect(g.counters(8, 8, 2) == 8 * 8 * 4, "a counter for each CTA of a split")
    expect(g.partials(1, 1, 3, 64, 2) % 16 == 0, "partials are multiples of 16 bytes")

    # The write grid covers every token.
    for heads, dim, v_dim in ((1, 64, 64), (3, 64, 64), (8, 128, 128), (64, 128, 128), (1, 192, 128), (2, 64, 256)):
        units = heads * (dim + v_dim) // 16
        per_cta = max(1, 128 // units)
        for tokens in (1, 7, 128, 129):
            expect(g.write_grid(tokens, heads, dim, v_dim) == -(-tokens // per_cta), f"write grid {tokens} {heads} {dim}")

    for text in failures:
        print(f"FAIL {text}")
    print(f"{passed} passed, {len(failures)} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
