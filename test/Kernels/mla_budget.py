# REQUIRES: ptxas, nvdisasm
# RUN: %python %s --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Budgets of the MLA kernel in SASS: issue slots per latent byte, bytes in flight, no spill, no local memory.

Prints the table of docs/performance.md with --table.
"""
import argparse
import os
import sys

from kernel_build import TYPES, Builder, cubin

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "utils"))
import sass_counts  # noqa: E402

WARPS = 8
FORMATS = ("e4m3", "e5m2", "f16", "bf16", "fp8_ds_mla")

# (arch, slots per latent byte at most, constants)
CASES = [(90, 0.15, dict(heads=64)), (90, 0.15, dict(heads=128)), (90, 0.10, dict(heads=32)), (90, 0.07, dict(heads=16)),
         (90, 0.17, dict(heads=64, latent_dim=256)), (90, 0.07, dict(heads=64, cache_type=3)), (90, 0.22, dict(heads=64, cache_type=4)),
         (90, 0.11, dict(heads=16, cache_type=4)), (90, 0.15, dict(heads=16, rows=4)), (90, 0.15, dict(heads=64, q_type=3)),
         (90, 0.13, dict(heads=32, q_type=2)), (89, 0.16, dict(heads=64)),
         (120, 0.21, dict(heads=64)), (80, 0.26, dict(heads=64)), (80, 0.14, dict(heads=16)), (80, 0.07, dict(heads=64, cache_type=3)),
         (80, 0.30, dict(heads=64, cache_type=4))]
IN_FLIGHT = {90: 64 << 10, 80: 36 << 10, 89: 32 << 10, 120: 32 << 10}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--llvm", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--table", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    os.environ["KVCACHE_LLVM_BIN"] = options.llvm
    builder = Builder(options.library, os.path.join(HERE, "..", "..", "kernels"), options.work)
    g = builder.geometry
    failed = passed = 0
    table = []
    for arch in sorted({arch for arch, _, _ in CASES}, reverse=True):
        cases = [(budget, *builder.mla(f"k{n}", **dict(arch=arch, q_type=1, page_size=64, num_splits=4) | values))
                 for n, (a, budget, values) in enumerate(CASES) if a == arch]
        path = os.path.join(options.work, f"mla{arch}.cubin")
        ptxas = cubin(builder.ptx([kernel for _, kernel, _ in cases], arch), arch, path)
        entries = {e["kernel"]: e for e in sass_counts.report(path)}
        for budget, (name, _), v in cases:
            e, problems = entries[name], []
            for what in ("stack", "local", "spill_loads", "spill_stores"):
                if e[what]:
                    problems.append(f"{what} {e[what]}")
            problems += [f"ptxas: {k} {ptxas[name][k]}" for k in ("stack", "spill_stores", "spill_loads") if ptxas[name][k]]
            # The warps share a tile; where its rows do not divide among their
            # lanes, one copy is predicated, and the bytes are those of the tile.
            row = g.latent_row(v["cache_type"], v["latent_dim"], v["rope_dim"])
            loop, tile = e["loop"], v["tile"] * row
            slots = loop["instructions"] * WARPS / tile
            if loop["kv_bytes"] * WARPS < tile:
                problems.append(f"main loop copies {loop['kv_bytes'] * WARPS} bytes, expected a tile of {tile}")
            if slots > budget:
                problems.append(f"{slots:.4f} slots per latent byte, budget {budget}")
            # Codes leave their stage before it is requested again.
            flight = (v["stages"] - (v["cache_type"] in (2, 3))) * tile
            if v["latent_dim"] == 512 and flight < IN_FLIGHT[arch]:
                problems.append(f"{flight} bytes in flight, budget {IN_FLIGHT[arch]}")
            rows = " x 4 rows" if v["rows"] > 1 else ""
            queries = f", {TYPES[v['q_type']]} queries" if v["q_type"] != 1 else ""
            text = (f"sm_{arch} | {v['heads']}{rows}{queries} | {v['latent_dim']} + {v['rope_dim']} | "
                    f"{FORMATS[v['cache_type']]} | {v['tile']} x {v['stages']}")
            table.append(f"| {text} | {slots:.4f} | {loop['by_mnemonic']['HMMA'] * WARPS / tile:.4f} | {e['registers']} | {g.shared_of(v)} | "
                         f"{flight >> 10} |")
            passed, failed = passed + (not problems), failed + bool(problems)
            if problems:
                print(f"FAIL {text}")
                for p in problems:
                    print(f"    {p}")
    if options.table:
        print("| target | heads | latent | cache | tile x stages | slots per latent byte | of them products | registers | shared B | KiB in flight |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        print("\n".join(table))
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
