# RUN: %python %s --llvm=%llvm_bin --work=%t

"""Geometry.h: defaults fit their machines, splits follow the capacities, workspace sizes do not overflow."""
import argparse
import os
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

    for arch, limit in SHARED_PER_CTA.items():
        for dim in (64, 128):
            for group in range(1, 17):
                for page in (16, 32, 64, 128):
                    t = g.tuning(arch, dim, group, page)
                    where = f"sm_{arch} D{dim} group {group} page {page}: {t}"
                    shared = g.shared(dim, group, t["tile"], t["stages"])
                    granule = g.granule(t["tile"], page)
                    expect(g.legal(group, 1, dim, page, t["tile"], t["stages"], t["unroll"], granule, 4), where + " is legal")
                    expect(shared <= limit, f"{where} needs {shared} bytes, the limit is {limit}")
                    expect(g.ctas(arch, shared) >= t["min_ctas"], where + " fits minCtasPerSM by shared memory")
                    # K and V rings of four warps, with 16 bytes of padding a row.
                    expect(shared >= 4 * t["stages"] * 2 * t["tile"] * (dim + 16), where + " has room for the rings")
                    # f32 merge of four warps, padding heads included.
                    expect(shared >= 4 * (8 if group <= 8 else 16) * dim * 4, where + " has room for the merge")

    refused = [(17, 1, 128, 16, 32, 2, 1, 128, 1), (6, 4, 128, 16, 32, 2, 1, 128, 1), (4, 4, 96, 16, 32, 2, 1, 128, 1),
               (4, 4, 128, 8, 32, 2, 1, 128, 1), (4, 4, 128, 256, 32, 2, 1, 256, 1), (4, 4, 128, 48, 32, 2, 1, 192, 1),
               (4, 4, 128, 128, 16, 2, 1, 128, 1), (4, 4, 128, 16, 32, 1, 1, 128, 1), (4, 4, 128, 16, 32, 3, 2, 128, 1),
               (4, 4, 128, 16, 32, 2, 1, 100, 1), (4, 4, 128, 16, 32, 2, 1, 0, 1), (4, 4, 128, 16, 32, 2, 1, 128, 0),
               (4, 4, 128, 16, 32, 2, 1, 128, 65), (4, 4, 128, 16, 64, 2, 1, 256, 1)]
    for case in refused:
        expect(not g.legal(*case), f"{case} is refused")

    def splits(rows, pages, q_heads=64, kv_heads=8):
        return g.choose_splits(90, q_heads, kv_heads, 128, 64, 32, 3, rows, pages)

    one_long, many = splits(1, 1024), splits(128, 32)
    expect(one_long[1] >= 16, f"one sequence of 64k tokens is split over the machine: {one_long}")
    expect(many[1] == 1, f"128 sequences fill the machine alone: {many}")
    expect(splits(1, 2)[1] == 1, "128 tokens are not split")
    expect(all(splits(r, p)[0] % 128 == 0 for r in (1, 7, 300) for p in (1, 5, 4096)), "splits are whole tiles and pages")
    expect(splits(1, 1 << 20)[1] <= 64, "at most 64 splits")

    # Sizes beyond 32 bits; nothing is needed without splits.
    expect(g.partials(65535, 64, 8, 128, 64) == 4 * 65535 * 8 * 64 * (8 * 128 + 16), "partials in 64 bits")
    expect(g.partials(8, 64, 8, 128, 1) == 0 and g.counters(8, 64, 8, 1) == 0, "no workspace with one split")
    expect(g.counters(8, 64, 8, 2) == 8 * 8 * 4, "a counter for each row and KV head")
    expect(g.partials(1, 3, 1, 64, 2) % 16 == 0, "partials are multiples of 16 bytes")

    # The write grid covers every token.
    for heads, dim in ((1, 64), (3, 64), (8, 128), (64, 128)):
        units = 2 * heads * dim // 16
        per_cta = max(1, 128 // units)
        for tokens in (1, 7, 128, 129):
            expect(g.write_grid(tokens, heads, dim) == -(-tokens // per_cta), f"write grid {tokens} {heads} {dim}")

    for text in failures:
        print(f"FAIL {text}")
    print(f"{passed} passed, {len(failures)} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
