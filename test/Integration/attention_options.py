"""Compiles a layer with options, verifies it, and shows that the verification
would notice if one of them were another."""

import json
import os
import subprocess
import sys

import numpy as np

import tensor_files

FOLDER = sys.argv[1]
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 64, 16
CACHE = f"!kvcache.cache<{KV_HEADS} x {DIM} x f8E4M3FN>"
ROWS = f"{HEADS}x{DIM}"


def graph(tokens, query, out, arguments, options, attributes):
    return f"""
kvcache.scale_buffer @layer0.k : f32 = 2.500000e-01 from override
kvcache.scale_buffer @layer0.v : f32 = 5.000000e-01 from override
kvcache.scale_buffer @layer0.q : f32 = 7.500000e-01 from override
kvcache.scale_buffer @layer0.o : f32 = 3.000000e-03 from override
kvcache.cache_group @full page_size {PAGE} {{max_pages_per_sequence = 8 : i64, max_sequences = 1 : i64, max_tokens = {tokens} : i64, num_pages = 8 : i64}}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : {KV_HEADS} x {DIM} x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @main(%q: memref<{tokens}x{ROWS}x{query}>, %out: memref<{tokens}x{ROWS}x{out}>{arguments}) {{
  %c = kvcache.get_cache @layer0 : {CACHE}
  kvcache.paged_attention %q over %c outs(%out) {options} {{softmax_scale = 0.125 : f64, {attributes}}}
    : memref<{tokens}x{ROWS}x{query}>, {CACHE} -> memref<{tokens}x{ROWS}x{out}>
  return
}}
"""


class Case:
    def __init__(self, name, text, tokens, query, extra):
        self.bundle, self.inputs = (os.path.join(FOLDER, name + end) for end in (".kvb", ".safetensors"))
        path = os.path.join(FOLDER, name + ".mlir")
        with open(path, "w") as file:
            file.write(text)
        subprocess.run(["kvcache-compile", path, "--ptxas=none", "--target=sm_80,sm_90", "--quiet", "-o", self.bundle], check=True)
        random = np.random.default_rng(7)
        codes = random.integers(0, 256, (2, 8, PAGE, KV_HEADS, DIM), np.uint8)
        codes[(codes & 0x7F) >= 0x60] = 0x38
        values = random.standard_normal((tokens, HEADS, DIM)).astype(np.float32)
        if query == "BF16":
            rows = (values.view(np.uint32) >> 16).astype(np.uint16)
        else:  # codes of about the same size
            rows = random.integers(0x28, 0x40, values.shape).astype(np.uint8) | (values < 0).astype(np.uint8) << 7
        self.tensors = {name: tensor_files.Tensor(*value) for name, value in dict({
            "page_table": ("I32", random.permutation(8).astype(np.int32).reshape(1, 8)),
            "lengths": ("I32", np.array([100], np.int32)), "query_start": ("I32", np.array([0, tokens], np.int32)),
            "layer0.query": (query, rows), "layer0.k_cache": ("F8_E4M3", codes[0]),
            "layer0.v_cache": ("F8_E4M3", codes[1])}, **extra).items()}
        tensor_files.write(self.inputs, self.tensors)
        for target in ("sm_80", "sm_90"):
            report, result = self.verify(target)
            if not report["verified"]:
                sys.exit(result.stdout + result.stderr)
        with open(os.path.join(self.bundle, "manifest.json")) as file:
            self.manifest = json.load(file)

    def verify(self, target="sm_90"):
        result = subprocess.run(["kvcache-run", self.bundle, f"--inputs={self.inputs}", f"--target={target}", "--verify", "--json"],
                                capture_output=True, text=True)
        if not result.stdout:
            sys.exit(result.stderr)
        return json.loads(result.stdout.splitlines()[-1]), result

    def must_notice(self, what, change):
        """`change` gets a layer of the manifest; the launches stay what they were."""
        changed = json.loads(json.dumps(self.manifest))
        change(changed["layers"][0])
        with open(os.path.join(self.bundle, "manifest.json"), "w") as file:
            json.dump(changed, file)
        if self.verify()[0]["verified"]:
            sys.exit(f"{what} was not noticed")


def put(member, value):
    return lambda layer: layer.update({member: value})


case = Case("masked", graph(1, "bf16", "bf16", "", "", "soft_cap = 3.0 : f64, window = 20 : i64"), 1, "BF16", {})
case.must_notice("another window", put("window", 21))
case.must_notice("no window", lambda layer: layer.pop("window"))
case.must_notice("another soft cap", put("soft_cap", {"value": 4.0, "bits": "0x40800000"}))
case.must_notice("no soft cap", lambda layer: layer.pop("soft_cap"))

# Decode and prefill kernels; the sinks are about as large as the scores.
for tokens in (1, 20):
    values = {"layer0.sinks": ("F32", np.float32([3, -2, 5, 4])), "layer0.alibi_slopes": ("F32", np.float32([.5, .25, .125, .0625]))}
    case = Case(f"codes{tokens}", graph(tokens, "f8E5M2" if tokens == 1 else "f8E4M3FN", "f8E4M3FN" if tokens == 1 else "f8E5M2",
                                        f", %sinks: memref<{HEADS}xf32>, %slopes: memref<{HEADS}xf32>",
                                        f"sinks(%sinks : memref<{HEADS}xf32>) alibi_slopes(%slopes : memref<{HEADS}xf32>)",
                                        "o_scale = @layer0.o, q_scale = @layer0.q"), tokens, "F8_E5M2" if tokens == 1 else "F8_E4M3", values)
    for role, value, bits in (("q", 0.5, "0x3F000000"), ("o", 0.0078125, "0x3C000000")):
        case.must_notice(f"another {role} scale", lambda layer: layer["scales"][role].update(value=value, bits=bits))
    for name in ("sinks", "alibi_slopes"):
        case.must_notice(f"no {name}", lambda layer: layer["buffers"].pop(name))
