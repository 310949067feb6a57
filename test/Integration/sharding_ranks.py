#!/usr/bin/env python3
"""One graph, whole and split over ranks by upstream's sharding passes: what the
ranks write and return, put together, is what the whole graph does, bit for bit.
Sinks and ALiBi slopes, one for each query head, are split with the heads.

Scales are per KV head and come from a checkpoint, so each rank folds its own.
Both are compiled with the reference semantics of the ops.
"""

import argparse
import os
import sys
import tempfile

import ml_dtypes
import numpy as np

from cpu_model import CpuModel, run_tool

DIM, PAGE, PAGES, Q_HEADS, KV_HEADS = 64, 16, 5, 4, 2
CHECKPOINT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "Inputs", "checkpoints",
                          "compressed_tensors_attn_head")
SPLIT = "func.func(sharding-propagation,shard-partition),kvcache-partition-caches"


def graph(grid, axes, annotated, layout):
    """A write and an attention. Only `annotated` says how heads are split."""
    rows, queries = f"tensor<?x{KV_HEADS}x{DIM}xbf16>", f"tensor<?x{Q_HEADS}x{DIM}xbf16>"
    lse, heads, handle = f"tensor<?x{Q_HEADS}xf32>", f"tensor<{Q_HEADS}xf32>", f"!kvcache.cache<{KV_HEADS} x {DIM} x f8E4M3FN>"
    types = {"k": rows, "q": queries}
    names = {name: f"%{name}_split" if name == annotated else f"%{name}" for name in types}
    return f"""
shard.grid @ranks(shape = {"x".join(map(str, grid))})
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size {PAGE}
kvcache.cache @c of "model.layers.0.self_attn.attn" in @full : {KV_HEADS} x {DIM} x f8E4M3FN scales(@k, @v) layout {layout}
func.func @main(%q: {queries}, %k: {rows}, %v: {rows}, %s: {heads}, %a: {heads}, %o: {queries}, %l: {lse}) -> ({queries}, {lse}) {{
  %split = shard.sharding @ranks split_axes = [[], {axes}] : !shard.sharding
  %{annotated}_split = shard.shard %{annotated} to %split annotate_for_users : {types[annotated]}
  %c = kvcache.get_cache @c : {handle}
  kvcache.write {names["k"]}, %v to %c : {rows}, {rows}, {handle}
  %r:2 = kvcache.paged_attention {names["q"]} over %c outs(%o, %l) sinks(%s : {heads}) alibi_slopes(%a : {heads}) {{softmax_scale = 0.125 : f64, soft_cap = 20.0 : f64}}
    : {queries}, {handle} -> {queries}, {lse}
  return %r#0, %r#1 : {queries}, {lse}
}}
"""


def pools(heads, layout):
    """Pages of K and V of NaN, as views [page, token, head, dim]."""
    if layout == "packed":
        pool = np.full((PAGES, 2, PAGE, heads, DIM), 0x7F, np.uint8)
        return pool[:, 0], pool[:, 1]
    if layout == "hnd":
        return tuple(np.full((PAGES, heads, PAGE, DIM), 0x7F, np.uint8).transpose(0, 2, 1, 3) for _ in "kv")
    return tuple(np.full((PAGES, PAGE, heads, DIM), 0x7F, np.uint8) for _ in "kv")


def call(model, q, k, v, sinks, slopes, layout, tables):
    pages = pools(k.shape[1], layout)
    outputs = np.full(q.shape, 0x7FC1, np.uint16), np.full(q.shape[:2], 0x7FC00001, np.uint32)
    named = dict(tables, **{"c.k_cache": pages[0], "c.v_cache": pages[1]})
    own = [q, k, v, sinks, slopes, *outputs]
    out, lse = model(*own, *(named[name] for name in model.argument_names()[len(own):]))
    return out, lse, *pages


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvcache-opt", default="kvcache-opt")
    options = parser.parse_args()
    rng = np.random.default_rng(6)
    rows = 20
    q, k, v = (rng.standard_normal((rows, heads, DIM)).astype(ml_dtypes.bfloat16).view(np.uint16)
               for heads in (Q_HEADS, KV_HEADS, KV_HEADS))
    sinks = np.array([0.5, -1, 2, 0], np.float32)
    slopes = np.array([0.25, 0.125, 0.0625, 0.5], np.float32)
    # Two sequences of 18 and 1 tokens, and a row of padding.
    tables = {"page_table": np.array([[3, 1], [4, 2147480000]], np.int32), "lengths": np.array([18, 1], np.int32),
              "query_start": np.array([0, 18, 19], np.int32),
              "slot_mapping": np.array([3 * PAGE + i for i in range(16)] + [PAGE, PAGE + 1, 4 * PAGE, -1], np.int64)}
    failures = 0
    with tempfile.TemporaryDirectory() as work:

        def compile(text, pipeline, stem):
            path = os.path.join(work, stem)
            with open(path + ".mlir", "w") as file:
                file.write(text)
            run_tool(options.kvcache_opt, path + ".mlir", f"--pass-pipeline=builtin.module({pipeline})", "-o",
                     path + ".split.mlir")
            # No collective is left, so nothing needs the grid, which has no lowering to the CPU.
            with open(path + ".split.mlir") as file:
                lines = [line for line in file if "shard.grid" not in line]
            assert not any("shard." in line for line in lines), "".join(lines)
            with open(path + ".split.mlir", "w") as file:
                file.writelines(lines)
            return CpuModel(options.kvcache_opt, path + ".split.mlir", work, stem=stem)

        # Over the KV heads; and with two ranks for each of them.
        for name, grid, axes, annotated, layout in (("two ranks", (2,), "[0]", "k", "nhd"),
                                                    ("two ranks, by the query", (2,), "[0]", "q", "packed"),
                                                    ("four ranks, two for each KV head", (2, 2), "[0, 1]", "q", "hnd")):
            ranks = int(np.prod(grid))
            text = graph(grid, axes, annotated, layout)
            # The whole graph is the same text, in which annotations mean nothing.
            plain = "\n".join(line.replace(f"%{annotated}_split", f"%{annotated}") for line in text.splitlines()
                              if " = shard." not in line)
            whole = call(compile(plain, f"kvcache-fold-checkpoint-scales{{checkpoint={CHECKPOINT}}}", "whole" + layout),
                         q, k, v, sinks, slopes, layout, tables)
            wrong = 0
            for rank in range(ranks):
                model = compile(text, f"{SPLIT},kvcache-fold-checkpoint-scales{{checkpoint={CHECKPOINT} "
                                f"tp-size={ranks} tp-rank={rank}}}", f"rank{layout}{rank}")
                heads = slice(rank * Q_HEADS // ranks, (rank + 1) * Q_HEADS // ranks)
                kv = slice(rank * KV_HEADS // ranks, max((rank + 1) * KV_HEADS // ranks, rank * KV_HEADS // ranks + 1))
                copies = [np.ascontiguousarray(x) for x in (q[:, heads], k[:, kv], v[:, kv], sinks[heads], slopes[heads])]
                out, lse, *pages = call(model, *copies, layout, tables)
                for got, want in ((out, whole[0][:, heads]), (lse, whole[1][:, heads]), (pages[0], whole[2][:, :, kv]),
                                  (pages[1], whole[3][:, :, kv])):
                    wrong += got.shape != want.shape or int((got != want).sum())
            written = int((whole[2] != 0x7F).sum())
            # Padding keeps its pattern, so equal bits alone would not tell that anything ran.
            right = wrong == 0 and written > 18 * KV_HEADS * DIM and (whole[0][:19] != 0x7FC1).all()
            print("ok    " if right else "FAILED", name, {"differing": wrong, "codes written": written})
            failures += not right
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
