#!/usr/bin/env python3
"""One graph, whole and split over ranks by upstream's sharding passes: what the
ranks write and return, put together, is what the whole graph does.

Heads: bit for bit. Sinks and ALiBi slopes, one for each query head, are split
with the heads. Tokens of sequences: outputs within one unit of bf16 and LSEs
within 1e-5 of double precision; this script plays the collectives.

Scales are per KV head and come from a checkpoint, so each rank folds its own.
Both are compiled with the reference semantics of the ops; the ranks of one split
of tokens for the PTX machine too, within two units of bf16 of a row's largest value.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

import tensor_files
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


class MachineModel:
    """A split graph as kernels on the PTX machine, called as a CpuModel is."""

    TABLES = ["page_table", "lengths", "query_start", "slot_mapping", "c.k_cache", "c.v_cache"]

    def __init__(self, stem, capacities):
        self.stem = stem
        with open(stem + ".split.mlir") as file:
            self.own = next(line for line in file if "func.func @main" in line).count(": tensor")
        run_tool("kvcache-compile", stem + ".split.mlir", "--ptxas=none", "--quiet", "--target=sm_90", *capacities,
                 "-o", stem + ".kvb")

    def argument_names(self):
        return [f"arg{i}" for i in range(self.own)] + self.TABLES

    def __call__(self, *arrays):
        types = {"uint8": "F8_E4M3", "uint16": "BF16", "uint32": "F32", "float32": "F32", "int32": "I32", "int64": "I64"}
        tensor_files.write(self.stem + ".in.safetensors", {
            name: tensor_files.Tensor(types[array.dtype.name], array) for name, array in zip(self.argument_names(), arrays)})
        run_tool("kvcache-run", self.stem + ".kvb", "--host", f"--inputs={self.stem}.in.safetensors", "--verify",
                 f"--outputs={self.stem}.out.safetensors")
        outputs = tensor_files.read(self.stem + ".out.safetensors")
        for name, array in zip(self.TABLES[-2:], arrays[-2:]):
            array[...] = outputs[name].data
        results = sorted((name for name in outputs if name.startswith("result")), key=lambda name: int(name[6:]))
        return [outputs[name].data.view(np.uint16 if outputs[name].dtype == "BF16" else np.uint32) for name in results]


class Ranks:
    """Compiles graphs for ranks, with the collectives as arguments and results."""

    def __init__(self, kvcache_opt, work):
        self.kvcache_opt, self.work = kvcache_opt, work

    def compile(self, text, pipeline, stem, gathers=0):
        """The model. Each of the `gathers` all_gathers has its input as a result behind the graph's own, and
        its result as an argument behind them."""
        path = os.path.join(self.work, stem)
        with open(path + ".mlir", "w") as file:
            file.write(text)
        run_tool(self.kvcache_opt, path + ".mlir", f"--pass-pipeline=builtin.module({pipeline})", "-o",
                 path + ".split.mlir")
        # The grid has no lowering to the CPU.
        with open(path + ".split.mlir") as file:
            lines = [line for line in file if "shard.grid" not in line]
        found = re.compile(r" *(%\w+) = shard.all_gather (%\w+) on @ranks grid_axes = \[1\] gather_axis = 0 : (\S+) -> (\S+)\n")
        collectives = [match.groups() for line in lines if (match := found.fullmatch(line))]
        lines = [line for line in lines if not found.fullmatch(line)]
        assert len(collectives) == gathers and not any("shard." in line for line in lines), "".join(lines)
        if collectives:
            results, inputs, inner, outer = zip(*collectives)
            for i, line in enumerate(lines):
                if "func.func @main" in line:
                    line = line.replace(") -> (", "".join(f", {r}: {t}" for r, t in zip(results, outer)) + ") -> (")
                    lines[i] = line.replace(") {", "".join(", " + t for t in inner) + ") {")
                elif "return %" in line:
                    values, types = line.rstrip().split(" : ")
                    lines[i] = f"{values}, {', '.join(inputs)} : {types}, {', '.join(inner)}\n"
        with open(path + ".split.mlir", "w") as file:
            file.writelines(lines)
        return CpuModel(self.kvcache_opt, path + ".split.mlir", self.work, stem=stem)


def fold(**options):
    words = " ".join(f"{name.replace('_', '-')}={value}" for name, value in options.items())
    return f"kvcache-fold-checkpoint-scales{{checkpoint={CHECKPOINT} {words}}}"


def check_heads(ranks_of, rng):
    """Failures of splits of the heads."""
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
    # Over the KV heads; and with two ranks for each of them.
    for name, grid, axes, annotated, layout in (("two ranks", (2,), "[0]", "k", "nhd"),
                                                ("two ranks, by the query", (2,), "[0]", "q", "packed"),
                                                ("four ranks, two for each KV head", (2, 2), "[0, 1]", "q", "hnd")):
        ranks = int(np.prod(grid))
        text = graph(grid, axes, annotated, layout)
        # The whole graph is the same text, in which annotations mean nothing.
        plain = "\n".join(line.replace(f"%{annotated}_split", f"%{annotated}") for line in text.splitlines()
                          if " = shard." not in line)
        whole = call(ranks_of.compile(plain, fold(), "whole" + layout), q, k, v, sinks, slopes, layout, tables)
        wrong = 0
        for rank in range(ranks):
            model = ranks_of.compile(text, f"{SPLIT},{fold(tp_size=ranks, tp_rank=rank)}", f"rank{layout}{rank}")
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
    return failures


def sequence_graph(sinks):
    """One decode step; heads split over the first axis of the grid, tokens of the cache over the second."""
    rows, queries = f"tensor<?x{KV_HEADS}x{DIM}xbf16>", f"tensor<?x{Q_HEADS}x{DIM}xbf16>"
    lse, heads, handle = f"tensor<?x{Q_HEADS}xf32>", f"tensor<{Q_HEADS}xf32>", f"!kvcache.cache<{KV_HEADS} x {DIM} x f8E4M3FN>"
    return f"""
shard.grid @ranks(shape = 2x3)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size {PAGE}
kvcache.cache @c of "model.layers.0.self_attn.attn" in @full : {KV_HEADS} x {DIM} x f8E4M3FN scales(@k, @v)
func.func @main(%q: {queries}, %k: {rows}, %v: {rows}, {f"%s: {heads}, " if sinks else ""}%o: {queries}, %l: {lse}) -> ({queries}, {lse}) {{
  %split = shard.sharding @ranks split_axes = [[], [0]] : !shard.sharding
  %k_split = shard.shard %k to %split annotate_for_users : {rows}
  %c = kvcache.get_cache @c {{kvcache.sequence_axes = {{grid = @ranks, axes = [1]}}}} : {handle}
  kvcache.write %k_split, %v to %c : {rows}, {rows}, {handle}
  %r:2 = kvcache.paged_attention %q over %c outs(%o, %l) {f"sinks(%s : {heads})" if sinks else ""} {{softmax_scale = 0.125 : f64, soft_cap = 20.0 : f64}}
    : {queries}, {handle} -> {queries}, {lse}
  return %r#0, %r#1 : {queries}, {lse}
}}
"""


def step_tables(lengths):
    """Page tables for these lengths: sequence i has the pages 2i and 2i + 1. New tokens are written where given."""
    count = len(lengths)
    return {"page_table": np.arange(2 * count, dtype=np.int32).reshape(count, 2)[:, ::-1].copy(),
            "lengths": np.array(lengths, np.int32), "query_start": np.arange(count + 1, dtype=np.int32)}


def slot_of(sequence, token):
    return (2 * sequence + 1 - token // PAGE) * PAGE + token % PAGE


def decode_step(model, own, tables, slots, codes, gathered=()):
    """Results of the graph, and the pages after it. codes: [sequence][token][head][dim] of earlier tokens, K and V."""
    rows, heads = own[0].shape[:2]
    pages = [np.full((2 * len(codes[0]), PAGE, codes[0][0].shape[1], DIM), 0x7F, np.uint8) for _ in "kv"]
    for page, of in zip(pages, codes):
        for i, tokens in enumerate(of):
            for t, row in enumerate(tokens):
                page.reshape(-1, *row.shape)[slot_of(i, t)] = row
    outputs = np.full((rows, heads, DIM), 0x7FC1, np.uint16), np.full((rows, heads), 0x7FC00001, np.uint32)
    named = dict(tables, slot_mapping=np.array(slots, np.int64), **{"c.k_cache": pages[0], "c.v_cache": pages[1]})
    own = [*own, *outputs, *gathered]
    return model(*own, *(named[name] for name in model.argument_names()[len(own):])), pages


def attend(q, k, v, sinks):
    """Output and LSE of one query row in double precision; q: [query head][dim], k, v: [token][KV head][dim]."""
    if not len(k):
        return np.zeros(q.shape), np.full(len(q), -np.inf)
    group = len(q) // k.shape[1]
    x = 20 * np.tanh(np.einsum("hd,thd->ht", q, np.repeat(k, group, 1)) * 0.125 / 20)
    top = np.maximum(x.max(1), sinks)
    p = np.exp(x - top[:, None])
    norm = p.sum(1) + np.exp(sinks - top)
    return np.einsum("ht,thd->hd", p, np.repeat(v, group, 1)) / norm[:, None], top + np.log(norm)


def check_sequences(ranks_of, rng):
    """Failures of splits of the tokens: uneven, with ranks without tokens, a sequence without any, and padding."""
    lengths, rows = [18, 1, 31, 0, 3], 7
    # Tokens of each rank along the second axis; the last rank that has any has the new one.
    shares = [[10, 0, 8], [0, 0, 1], [4, 27, 0], [0, 0, 0], [1, 1, 1]]
    q, k, v = (rng.standard_normal((rows, heads, DIM)).astype(ml_dtypes.bfloat16).view(np.uint16)
               for heads in (Q_HEADS, KV_HEADS, KV_HEADS))
    finite = np.flatnonzero(np.arange(256) & 0x78 != 0x78).astype(np.uint8)
    codes = [[rng.choice(finite, (max(n - 1, 0), KV_HEADS, DIM)) for n in lengths] for _ in "kv"]
    checkpoint = tensor_files.read(os.path.join(CHECKPOINT, "model.safetensors"))
    scales = [tensor_files.values(checkpoint[f"model.layers.0.self_attn.{of}_scale"]).reshape(-1, 1) for of in "kv"]
    failures = 0
    for name, sinks in (("no sinks", None), ("sinks", np.array([0.5, -1, 4, -np.inf], np.float32))):
        text = sequence_graph(sinks is not None)
        own_of = lambda heads, kv: [np.ascontiguousarray(x) for x in (q[:, heads], k[:, kv], v[:, kv], *([] if sinks is None else [sinks[heads]]))]
        plain = "\n".join(line.replace("%k_split", "%k") for line in text.splitlines() if " = shard." not in line)
        plain = re.sub(r"\{kvcache.sequence_axes.*?\}\}", "", plain)
        slots = [slot_of(i, n - 1) if n else -1 for i, n in enumerate(lengths)] + [-1] * (rows - len(lengths))
        (out, lse), pages = decode_step(ranks_of.compile(plain, fold(), f"whole{name[:2]}"), own_of(slice(None), slice(None)),
                                        step_tables(lengths), slots, codes)
        # Double precision over what the whole graph has in its cache.
        cached = [page.view(ml_dtypes.float8_e4m3fn).astype(np.float64).reshape(-1, KV_HEADS, DIM) * scale
                  for page, scale in zip(pages, scales)]
        want = [attend((q[i].astype(np.uint32) << 16).view(np.float32).astype(np.float64),
                       *(of[[slot_of(i, t) for t in range(n)]] for of in cached),
                       np.full(Q_HEADS, -np.inf) if sinks is None else sinks.astype(np.float64)) for i, n in enumerate(lengths)]
        for compiled in ("reference",) if sinks is None else ("reference", "kernels"):
            worst, worst_lse, wrong = 0.0, 0.0, 0
            for rank in range(2) if compiled == "reference" else (1,):
                heads, kv = slice(rank * 2, rank * 2 + 2), slice(rank, rank + 1)
                stem = f"tokens{name[:2]}{rank}"
                if compiled == "reference":
                    model = ranks_of.compile(text, f"{SPLIT},{fold(tp_size=2, tp_rank=rank)}", stem, gathers=2)
                else:
                    model = MachineModel(os.path.join(ranks_of.work, stem), [
                        f"--max-tokens={rows}", f"--max-sequences={len(lengths)}", "--max-pages-per-sequence=2",
                        f"--num-pages={2 * len(lengths)}"])
                steps = []
                for column in range(3):
                    local = [share[column] for share in shares]
                    begin = [sum(share[:column]) for share in shares]
                    new = [bool(n) and b + m == n and m > 0 for n, b, m in zip(lengths, begin, local)]
                    mine = [[of[i][b:b + m - is_new][:, kv] for i, (b, m, is_new) in enumerate(zip(begin, local, new))]
                            for of in codes]
                    slots = [slot_of(i, m - 1) if is_new else -1 for i, (m, is_new) in enumerate(zip(local, new))]
                    steps.append((own_of(heads, kv), step_tables(local), slots + [-1] * (rows - len(lengths)), mine))
                # Once for the parts, which do not depend on what is gathered, and once with them.
                nothing = [np.zeros((3, rows, 2, DIM), np.uint32), np.zeros((3, rows, 2), np.uint32)]
                parts = [decode_step(model, *step, nothing)[0][2:] for step in steps]
                gathered = [np.concatenate(part) for part in zip(*parts)]
                for step in steps:
                    got, got_lse = decode_step(model, *step, gathered)[0][:2]
                    wrong += int((got[len(lengths):] != 0x7FC1).sum() + (got_lse[len(lengths):] != 0x7FC00001).sum())
                    for i, (exact, exact_lse) in enumerate(want):
                        value = (got[i].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
                        size = np.abs(exact[heads])
                        if compiled == "kernels":  # P is f16
                            size = size.max(1, keepdims=True)
                        unit = 2.0 ** (np.floor(np.log2(np.maximum(size, 1e-30))) - 7)
                        worst = max(worst, float(np.nan_to_num(np.abs(value - exact[heads]) / unit, nan=1e9).max()))
                        g, w = got_lse[i].view(np.float32), exact_lse[heads]
                        with np.errstate(invalid="ignore"):  # infinities are equal
                            distance = np.where(g == w, 0, np.abs(g - w))
                        worst_lse = max(worst_lse, float(np.nan_to_num(distance, nan=1e9).max()))
                    if compiled == "reference":  # the whole graph in turn rounds once
                        wrong += int((np.abs(got[:len(lengths)].astype(int) - out[:len(lengths), heads].astype(int)) > 1).sum())
            right = worst <= (1 if compiled == "reference" else 2) and worst_lse <= 1e-5 and wrong == 0
            right &= bool((lse[3].view(np.float32) == -np.inf).all())
            print("ok    " if right else "FAILED", f"tokens over three ranks, {name}, {compiled}",
                  {"units": round(worst, 3), "LSE": f"{worst_lse:.1e}", "wrong": wrong})
            failures += not right
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvcache-opt", default="kvcache-opt")
    options = parser.parse_args()
    rng = np.random.default_rng(6)
    with tempfile.TemporaryDirectory() as work:
        ranks_of = Ranks(options.kvcache_opt, work)
        failures = check_heads(ranks_of, rng) + check_sequences(ranks_of, rng)
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
