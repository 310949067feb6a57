#!/usr/bin/env python3
"""Compiles decode bundles of 64 query and 8 KV heads of 128, runs their PTX on
the PTX machine against double precision, and counts the SASS of their cubins.

Shapes: bf16 queries, e4m3 cache, pages of 16 and 64, NHD and packed, for sm_90
and sm_80. Fails when a bundle is wrong or a budget is missed. With --table,
prints the table of docs/performance.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

import tensor_files

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "utils"))
import sass_counts  # noqa: E402

HEADS, KV_HEADS, DIM = 64, 8, 128
SLOTS = {"sm_90": 0.04, "sm_80": 0.08}
IN_FLIGHT = 64 << 10
# Live tokens: a tail in a page, one token, whole tiles, nothing.
LENGTHS = (333, 1, 256, 0)
SCALES = (0.0123, 0.25)

GRAPH = """
kvcache.scale_buffer @layer0.k : f32 = {k} from override
kvcache.scale_buffer @layer0.v : f32 = {v} from override
kvcache.cache_group @full page_size {page} {{max_pages_per_sequence = {pages} : i64, max_sequences = 4 : i64, max_tokens = 4 : i64, num_pages = {pool} : i64}}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : {kv_heads} x {dim} x f8E4M3FN scales(@layer0.k, @layer0.v) layout {layout}
func.func @main(%q: memref<?x{heads}x{dim}xbf16>, %k: memref<?x{kv_heads}x{dim}xbf16>, %v: memref<?x{kv_heads}x{dim}xbf16>, %out: memref<?x{heads}x{dim}xbf16>) {{
  %c = kvcache.get_cache @layer0 : !kvcache.cache<{kv_heads} x {dim} x f8E4M3FN>
  kvcache.write %k, %v to %c : memref<?x{kv_heads}x{dim}xbf16>, memref<?x{kv_heads}x{dim}xbf16>, !kvcache.cache<{kv_heads} x {dim} x f8E4M3FN>
  kvcache.paged_attention %q over %c outs(%out) {{softmax_scale = 0.08838834764831845 : f64}}
    : memref<?x{heads}x{dim}xbf16>, !kvcache.cache<{kv_heads} x {dim} x f8E4M3FN> -> memref<?x{heads}x{dim}xbf16>
  return
}}
"""


def bf16(values):
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_inputs(path, page, pages, pool, layout):
    """Random activations and cache codes, pages in random order, and page ids
    that must not be read behind each sequence's last page."""
    random = np.random.default_rng(page)
    table = np.full((4, pages), 2147480000, np.int32)
    free = list(random.permutation(pool))
    slots = np.full(4, -1, np.int64)
    for sequence, length in enumerate(LENGTHS):
        for i in range(-(-length // page)):
            table[sequence, i] = free.pop()
        if length:
            slots[sequence] = int(table[sequence, (length - 1) // page]) * page + (length - 1) % page
    # A sequence of length 0 has no row in this step.
    rows = sum(length > 0 for length in LENGTHS)
    starts = np.cumsum([0] + [int(length > 0) for length in LENGTHS]).astype(np.int32)
    tensors = {
        "page_table": ("I32", table), "lengths": ("I32", np.array(LENGTHS, np.int32)),
        "query_start": ("I32", starts), "slot_mapping": ("I64", slots[slots >= 0]),
        "layer0.query": ("BF16", bf16(random.standard_normal((rows, HEADS, DIM)))),
        "layer0.key": ("BF16", bf16(random.standard_normal((rows, KV_HEADS, DIM)))),
        "layer0.value": ("BF16", bf16(random.standard_normal((rows, KV_HEADS, DIM)))),
    }
    codes = random.integers(0, 256, (2, pool, page, KV_HEADS, DIM), np.uint8)
    codes[(codes & 0x7F) >= 0x70] = 0x38
    if layout == "packed":
        tensors["layer0.kv_cache"] = ("F8_E4M3", np.ascontiguousarray(codes.swapaxes(0, 1)))
    else:
        tensors["layer0.k_cache"], tensors["layer0.v_cache"] = (("F8_E4M3", half) for half in codes)
    tensor_files.write(path, {name: tensor_files.Tensor(*tensor) for name, tensor in tensors.items()})


def run(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the table of docs/performance.md")
    options = parser.parse_args()
    if options.table:
        print("| target | page | layout | slots per KV byte | registers | spills | CTAs per SM | KiB in flight | "
              "largest error of its tolerance |\n|---|---|---|---|---|---|---|---|---|")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for page in (16, 64):
            pages, pool = 384 // page, 1024 // page
            for layout in ("nhd", "packed"):
                graph, inputs, bundle = (os.path.join(folder, name) for name in ("g.mlir", "in.safetensors", "b.kvb"))
                with open(graph, "w") as file:
                    file.write(GRAPH.format(k=SCALES[0], v=SCALES[1], page=page, pages=pages, pool=pool,
                                            layout=layout, heads=HEADS, kv_heads=KV_HEADS, dim=DIM))
                write_inputs(inputs, page, pages, pool, layout)
                run(["kvcache-compile", graph, "--target=sm_80,sm_90", "--softmax-scale=0.08838834764831845",
                     "--soft-cap=0", "--window=0", "--quiet", "-o", bundle])
                with open(os.path.join(bundle, "manifest.json")) as file:
                    manifest = json.load(file)
                for target in manifest["targets"]:
                    chip = target["chip"]
                    report = json.loads(run(["kvcache-run", bundle, f"--target={chip}", f"--inputs={inputs}",
                                             "--verify", "--json"]).splitlines()[-1])
                    launch = next(one for one in target["launches"] if one["op"] == "paged_attention")
                    counts = next(one for one in sass_counts.report(os.path.join(bundle, target["cubin"]["file"]),
                                                                    launch["shared_bytes"])
                                  if one["kernel"] == launch["kernel"])
                    spills = counts["spill_loads"] + counts["spill_stores"] + counts["stack"] + counts["local"]
                    row = (chip, page, layout, counts["loop"]["slots_per_byte"], counts["registers"], spills,
                           counts["ctas_per_sm"], counts["bytes_in_flight"] / 1024,
                           max(layer["max_error_over_tolerance"] for layer in report["layers"]))
                    if options.table:
                        print("| {} | {} | {} | {:.4f} | {} | {} | {} | {:g} | {:.2f} |".format(*row))
                    else:
                        print("{} page {} {}: {:.4f} slots per KV byte, {} registers, {} spills, {} CTAs per SM, "
                              "{:g} KiB in flight, error {:.2f} of its tolerance".format(*row))
                    if not (report["verified"] and row[3] <= SLOTS[chip] and row[5] == 0
                            and counts["bytes_in_flight"] >= IN_FLIGHT):
                        missed.append(row[:3])
    if missed:
        sys.exit(f"budget or result missed: {missed}")


if __name__ == "__main__":
    main()
