# REQUIRES: ptxas, nvdisasm
# RUN: %python %s --library=%kernels_bc --llvm=%llvm_bin --work=%t

"""Budgets of the attention kernel in SASS: issue slots per KV byte, bytes in flight, no spill, no local memory.

Prints the table of docs/performance.md with --table.
"""
import argparse
import os
import subprocess
import sys

from kernel_build import TYPES, Builder, Layout, cubin, ptxas_path

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "utils"))
import sass_counts  # noqa: E402

SLOTS = {90: 0.04, 89: 0.04, 120: 0.04, 80: 0.08}
# Main loop of the shape with a budget on pages of 64, as LLVM 22.1.8 and ptxas 13.0.88 make it: no feature adds to it.
HOT = {90: 298, 80: 321, 89: 295, 120: 297}
# Tensor instructions over all instructions on sm_90, by head dim: without and with an LSE.
PREFILL = {64: (0.31, 0.26), 128: (0.39, 0.345), 256: (0.36, 0.34)}
IN_FLIGHT = {90: 64 << 10, 80: 64 << 10, 89: 32 << 10, 120: 32 << 10}


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

    # The shape with a budget, bf16 Q, D 128, group 8: pages and layouts. Then
    # other structures, for registers and spills, some with budgets of their own.
    cases = []
    for arch in (90, 80):
        for page in (16, 64):
            for layout in ("nhd", "packed"):
                cases.append((arch, True, 64, 8, 128, page, layout, 1, {}))
        for layout in ("hnd", "packed_head"):
            cases.append((arch, True, 64, 8, 128, 16, layout, 1, {}))
        cases.append((arch, False, 64, 4, 128, 32, "nhd", 1, {}))
        cases.append((arch, False, 96, 8, 64, 32, "nhd", 0, {}))
        cases.append((arch, False, 28, 4, 64, 128, "nhd", 1, {}))
        cases.append((arch, False, 64, 64, 128, 128, "nhd", 0, {}))
        cases.append((arch, False, 64, 8, 128, 64, "nhd", 1, dict(tile=16, stages=4, unroll=4)))
        cases.append((arch, False, 48, 3, 128, 64, "nhd", 1, dict(tile=32, stages=3, unroll=3, min_ctas=1)))
    for arch in (89, 120):
        cases.append((arch, True, 64, 8, 128, 64, "nhd", 1, {}))
        for budget, heads, dim, page, layout, q_type, more in (
                (0.024, 64, 128, 64, "nhd", 1, {}), (0.024, 64, 128, 16, "packed", 1, {}), (0.024, 64, 128, 16, "hnd", 3, {}),
                (0.024, 64, 128, 64, "nhd", 1, dict(cache_type=1)), (0.024, 32, 128, 64, "nhd", 0, {}),
                (0.036, 128, 128, 64, "nhd", 1, {}), (0.03, 64, 64, 64, "nhd", 1, {}), (0.03, 64, 256, 64, "nhd", 1, {})):
            cases.append((arch, budget, heads, 8, dim, page, layout, q_type, dict(more, math=1)))
    plain = len([c for c in cases if c[0] == 90])
    for budget, heads, dim, more in ((0.05, 32, 128, {}), (0.05, 128, 128, {}), (0.05, 64, 64, {}), (0.06, 64, 256, {}),
                                     (0.045, 64, 128, dict(runtime_strides=1)), (0.04, 64, 128, dict(has_window=1)),
                                     (0.04, 64, 128, dict(has_sinks=1)), (0.0365, 64, 128, dict(has_lse=0)),
                                     (0.041, 64, 128, dict(has_soft_cap=1)),
                                     (0.04, 64, 128, dict(has_alibi=1)), (0.04, 64, 128, dict(cache_type=1)),
                                     (0.04, 64, 128, dict(out_type=3)), (0.04, 64, 128, dict(out_type=2)), (0.02, 64, 128, dict(cache_type=3)), (0.07, 64, 128, dict(rows=4))):
        cases.append((90, budget, heads, 8, dim, 16, "nhd", 1, more))
    cases.append((90, 0.04, 64, 8, 128, 16, "nhd", 3, {}))
    # V with a head dim of its own.
    cases.append((90, 0.041, 64, 8, 192, 64, "nhd", 1, dict(v_head_dim=128)))
    cases.append((90, 0.042, 64, 8, 64, 64, "nhd", 1, dict(v_head_dim=128)))
    cases.append((80, 0.079, 64, 8, 192, 64, "nhd", 1, dict(v_head_dim=128)))

    failed = passed = 0
    rows = []
    measured = "V13.0.88" in subprocess.run([ptxas_path(), "--version"], capture_output=True, text=True).stdout
    for arch in (90, 80, 89, 120):
        kernels, values = [], []
        for case in (c for c in cases if c[0] == arch):
            _, budget, heads, kv_heads, dim, page, layout, q_type, more = case
            kernel, full = builder.attention(
                f"k{len(kernels)}", arch=arch, q_type=q_type, q_heads=heads, kv_heads=kv_heads, head_dim=dim,
                page_size=page, num_splits=4, layout=Layout(layout, page, kv_heads, dim, 2 if more.get("cache_type", 0) >= 2 else 1, v_dim=more.get("v_head_dim")), **more)
            kernels.append(kernel)
            tuned = any(key in more for key in ("tile", "stages", "unroll", "min_ctas"))
            values.append((SLOTS[arch] if budget is True else budget, not tuned, layout, full))
        if arch in (90, 80):
            kernels.append(builder.write("w", arch=arch, in_type=1, kv_heads=8, head_dim=128, page_size=16,
                                         layout=Layout("nhd", 16, 8, 128), k_scale_is_pow2=0, v_scale_is_pow2=1)[0])
        prefills = [builder.prefill(f"prefill{dim}_{lse}", arch=arch, q_type=1, q_heads=64, kv_heads=8, head_dim=dim, page_size=16,
                                    layout=Layout("nhd", 16, 8, dim), has_lse=lse)
                    for dim, lse in ([(dim, lse) for dim in PREFILL for lse in (0, 1)] if arch == 90 else [(128, 0)])]
        kernels += [kernel for kernel, _ in prefills]
        prefill_values = {kernel[0]: v for kernel, v in prefills}
        path = os.path.join(options.work, f"budget{arch}.cubin")
        ptxas = cubin(builder.ptx(kernels, arch), arch, path)
        entries = {e["kernel"]: e for e in sass_counts.report(path)}
        for name, _ in kernels:
            e, problems = entries[name], []
            text = f"sm_{arch} {name}"
            for what in ("stack", "local", "spill_loads", "spill_stores"):
                if e[what]:
                    problems.append(f"{what} {e[what]}")
            problems += [f"ptxas: {k} {ptxas[name][k]}" for k in ("stack", "spill_stores", "spill_loads") if ptxas[name][k]]
            if name.startswith("prefill"):
                # The steps of one tile of 64 keys that is copied and converted.
                v = prefill_values[name]
                dim, lse = v["head_dim"], v["has_lse"]
                step, steps = e["tensor_step"], 64 // g.prefill_step()
                # Of each M tile: queries times keys, P times values, and sums.
                products = min(2, 256 // dim) * (dim // 2 + (0 if lse else 2))
                if step["tensor"] != products or not 0 < step["around"] < 3 * step["instructions"]:
                    problems.append(f"a step has {step['tensor']} tensor instructions, expected {products}, and {step['around']} around it")
                share = steps * step["tensor"] / (steps * step["instructions"] + step["around"])
                if arch == 90 and share < PREFILL[dim][lse]:
                    problems.append(f"{share:.3f} of the instructions are tensor instructions, expected {PREFILL[dim][lse]}")
                if options.table and arch == 90:
                    # A block with one row of a sequence: all warps copy and convert, some take the steps.
                    warps, sharers = v["warps"], min(steps, 4)
                    around, one = step["around"], step["instructions"]
                    print(f"sm_{arch} prefill, 64/8 heads, D {dim}{', LSE' if lse else ''}: {step['tensor']} of {one} instructions a step are "
                          f"tensor instructions; {share:.3f} of all, with the {around} around {steps} steps. A decode row takes "
                          f"{(warps * around + steps * one) / (128 * dim):.3f} slots per KV byte, and a warp of it "
                          f"{around + steps // sharers * one} instructions for 64 keys\n")
            elif name != "w":
                budget, defaults, layout, v = values[int(name[1:])]
                element = g.cache_bytes(v["cache_type"])
                shared = g.shared_of(v)
                ctas = sass_counts.ctas_per_sm(arch, e["registers"], shared)
                loop = e["loop"]
                iterations = loop["kv_bytes"] / g.per_iteration(v["head_dim"], v["v_head_dim"], element, v["tile"])
                flight = (v["stages"] - 1) * g.per_iteration(v["head_dim"], v["v_head_dim"], element, v["tile"]) * 4 * ctas
                waits = e["outstanding_groups"]
                what = "".join(f" {k}={v[k]}" for k in ("cache_type", "rows", "has_window", "has_soft_cap", "has_sinks", "has_alibi",
                                                        "runtime_strides") if v[k] > (k == "rows"))
                what += "" if v["has_lse"] else " without LSE"
                if v["out_type"] != v["q_type"]:
                    what += f" to {TYPES[v['out_type']]}"
                text = (f"sm_{arch} {v['q_heads']}/{v['kv_heads']} D{v['head_dim']} page {v['page_size']} {layout} "
                        f"tile {v['tile']}x{v['stages']}{what}")
                if v["math"]:
                    what += " fp8-math"
                    if loop["by_mnemonic"].get("HMMA") or not loop["by_mnemonic"].get("QMMA"):
                        problems.append("codes are not multiplied as they are")
                elif measured and budget is SLOTS[arch] and v["page_size"] == 64 and layout == "nhd" and loop["instructions"] > HOT[arch]:
                    problems.append(f"{loop['instructions']} instructions in the main loop, expected {HOT[arch]} at most")
                if iterations != v["unroll"]:
                    problems.append(f"main loop copies {loop['kv_bytes']} bytes, expected {v['unroll']} iterations")
                if waits != v["stages"] - 1:
                    problems.append(f"{waits} groups in flight at the wait, expected {v['stages'] - 1}")
                if budget and loop["slots_per_byte"] > budget:
                    problems.append(f"{loop['slots_per_byte']:.4f} slots per KV byte, budget {budget}")
                # A window, sinks, and the types of queries and outputs have no part in the main loop (the allocation of
                # registers may cost FP8 queries a move), and a soft cap four
                # instructions for each score.
                if arch == 90 and int(name[1:]) >= plain and v["head_dim"] == 128:
                    more = loop["instructions"] - entries["k0"]["loop"]["instructions"]
                    outside = v["has_window"] or v["has_sinks"] or v["q_type"] == 3 or v["out_type"] != v["q_type"]
                    if outside and more > (v["q_type"] == 3):
                        problems.append(f"{more} instructions more in the main loop, with the feature on")
                    if v["has_soft_cap"] and more > 2 * (4 * 4):
                        problems.append(f"a soft cap takes {more} instructions in 32 tokens")
                if defaults and flight < IN_FLIGHT[arch]:
                    problems.append(f"{flight} bytes in flight, budget {IN_FLIGHT[arch]}")
                if ctas < 1:
                    problems.append("does not fit on a multiprocessor")
                rows.append((arch, f"{v['q_heads']}/{v['kv_heads']}", v["head_dim"], TYPES[v["q_type"]],
                             v["page_size"], layout + what + f" V {v['v_head_dim']}" * (v["v_head_dim"] != v["head_dim"]), f"{v['tile']} x {v['stages']}", loop["instructions"] // v["unroll"],
                             f"{loop['slots_per_byte']:.4f}", e["registers"], shared, ctas, flight >> 10))
            if problems:
                failed += 1
                print(f"FAIL {text}")
                for p in problems:
                    print(f"    {p}")
            else:
                passed += 1
    if options.table:
        print("| arch | heads | D | Q | page | layout | tile x stages | slots/tile | slots per KV byte | registers | shared B | CTAs/SM | KiB in flight |")
        print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
        for r in rows:
            print("| sm_" + " | ".join(map(str, r)) + " |")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
