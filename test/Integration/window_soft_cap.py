"""Compiles one layer with a window and a soft cap, verifies it, and shows that
the verification would notice if either were another."""

import json
import os
import subprocess
import sys

import numpy as np

import tensor_files

FOLDER = sys.argv[1]
HEADS, KV_HEADS, DIM, PAGE, LENGTH = 4, 2, 64, 16, 100

GRAPH = f"""
kvcache.scale_buffer @layer0.k : f32 = 2.500000e-01 from override
kvcache.scale_buffer @layer0.v : f32 = 5.000000e-01 from override
kvcache.cache_group @full page_size {PAGE} {{max_pages_per_sequence = 8 : i64, max_sequences = 1 : i64, max_tokens = 1 : i64, num_pages = 8 : i64}}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : {KV_HEADS} x {DIM} x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @main(%q: memref<1x{HEADS}x{DIM}xbf16>, %out: memref<1x{HEADS}x{DIM}xbf16>) {{
  %c = kvcache.get_cache @layer0 : !kvcache.cache<{KV_HEADS} x {DIM} x f8E4M3FN>
  kvcache.paged_attention %q over %c outs(%out) {{softmax_scale = 0.125 : f64, soft_cap = 3.0 : f64, window = 20 : i64}}
    : memref<1x{HEADS}x{DIM}xbf16>, !kvcache.cache<{KV_HEADS} x {DIM} x f8E4M3FN> -> memref<1x{HEADS}x{DIM}xbf16>
  return
}}
"""


def verify():
    result = subprocess.run(["kvcache-run", bundle, f"--inputs={inputs}", "--verify", "--json"],
                            capture_output=True, text=True)
    return json.loads(result.stdout.splitlines()[-1]), result


graph, bundle, inputs = (os.path.join(FOLDER, name) for name in ("g.mlir", "b.kvb", "in.safetensors"))
with open(graph, "w") as file:
    file.write(GRAPH)
subprocess.run(["kvcache-compile", graph, "--ptxas=none", "--quiet", "-o", bundle], check=True)
random = np.random.default_rng(7)
codes = random.integers(0, 256, (2, 8, PAGE, KV_HEADS, DIM), np.uint8)
codes[(codes & 0x7F) >= 0x60] = 0x38
query = (random.standard_normal((1, HEADS, DIM)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
tensor_files.write(inputs, {name: tensor_files.Tensor(*value) for name, value in {
    "page_table": ("I32", random.permutation(8).astype(np.int32).reshape(1, 8)),
    "lengths": ("I32", np.array([LENGTH], np.int32)), "query_start": ("I32", np.array([0, 1], np.int32)),
    "layer0.query": ("BF16", query), "layer0.k_cache": ("F8_E4M3", codes[0]),
    "layer0.v_cache": ("F8_E4M3", codes[1])}.items()})

report, result = verify()
if not report["verified"]:
    sys.exit(result.stdout + result.stderr)
path = os.path.join(bundle, "manifest.json")
with open(path) as file:
    manifest = json.load(file)
for member, wrong in (("window", 21), ("window", None), ("soft_cap", {"value": 4.0, "bits": "0x40800000"}),
                      ("soft_cap", None)):
    changed = json.loads(json.dumps(manifest))
    changed["layers"][0][member] = wrong
    if wrong is None:
        del changed["layers"][0][member]
    with open(path, "w") as file:
        json.dump(changed, file)
    if verify()[0]["verified"]:
        sys.exit(f"{member} = {wrong} was not noticed")
