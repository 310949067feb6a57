"""Compiles `llama_explicit`, runs the whole model on the PTX machine and
verifies it; then shows that the verification would notice another q scale, and
that FP8 queries change the model's result, but not much."""

import json
import os
import subprocess
import sys

import numpy as np

import tensor_files

FOLDER = sys.argv[1]
INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "Inputs")
GRAPH = os.path.join(INPUTS, "graphs", "llama_explicit", "ops.linalg.st.mlir")
GOLDEN = os.path.join(INPUTS, "golden", "llama")
bundle, step, outputs = (os.path.join(FOLDER, name) for name in ("b.kvb", "step.safetensors", "out.safetensors"))


def run(target):
    result = subprocess.run(["kvcache-run", bundle, f"--target={target}", "--host", "--cache-fill=0x7E",
                             f"--inputs={os.path.join(GOLDEN, 'weights.safetensors')}", f"--steps={step}", "--verify",
                             "--json", f"--outputs={outputs}"], capture_output=True, text=True)
    if not result.stdout:
        sys.exit(result.stderr)
    return json.loads(result.stdout.splitlines()[-1]), result


subprocess.run(["kvcache-compile", GRAPH, "--checkpoint=" + os.path.join(INPUTS, "checkpoints", "quark_fp8"),
                "--target=sm_80,sm_90", "--max-sequences=2", "--max-pages-per-sequence=2", "--num-pages=7",
                "--ptxas=none", "--quiet", "-o", bundle], check=True)
# The first step of the golden run has the graph's seven tokens. Caches, slots and
# scales of the graph's own arguments are not read.
golden = tensor_files.read(os.path.join(GOLDEN, "modelopt_fp8", "step0.safetensors"))
tensors = {name: golden[name] for name in ("input_ids", "positions", "page_table", "lengths", "query_start", "slot_mapping")}
for layer in range(2):
    prefix = f"layers.{layer}."
    for name in ("key_cache", "value_cache"):
        tensors[prefix + name] = tensor_files.Tensor("F8_E4M3", np.full((4, 16, 2, 64), 0x41, np.uint8))
    tensors[prefix + "slot_mapping"] = tensor_files.Tensor("I64", np.full(7, -1, np.int64))
    for name in ("q_scale", "k_scale", "v_scale"):
        tensors[prefix + name] = tensor_files.Tensor("F32", np.float32([np.nan]))
tensor_files.write(step, tensors)

for target in ("sm_80", "sm_90"):
    report, result = run(target)
    if not report["verified"]:
        sys.exit(result.stdout + result.stderr)
    found = tensor_files.read(outputs)
    for i in range(4):
        if (found[f"result{i}"].data != 0x41).any():
            sys.exit(f"the cache argument that comes back as result {i} has changed")
    got, want = (tensor_files.values(t) for t in (found["result4"], golden["hidden"]))
    error = np.sqrt(np.mean((got - want) ** 2) / np.mean(want ** 2))
    if not 1e-4 < error < 0.05:
        sys.exit(f"{target}: the relative rms distance from queries that are not quantized is {error}")

path = os.path.join(bundle, "manifest.json")
with open(path) as file:
    manifest = json.load(file)
manifest["layers"][0]["scales"]["q"].update({"value": 0.5, "bits": "0x3F000000"})
with open(path, "w") as file:
    json.dump(manifest, file)
if run("sm_90")[0]["verified"]:
    sys.exit("another q scale was not noticed")
