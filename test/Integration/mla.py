"""Compiles write_latent and mla_attention over each format of latent rows, runs
steps of several lengths, and compares with double precision."""

import json
import os
import re
import subprocess
import sys

FOLDER = sys.argv[1]

# (cache, rows, heads, latent dim, page size, capacity in sequences and tokens), and the queries and outputs that are no rows
CASES = {
    "e4m3": ("f8E4M3FN", "bf16", 16, 512, 16, (4, 4)),
    "rows": ("f8E4M3FN", "f16", 8, 256, 32, (2, 6)),
    "e5m2": ("f8E5M2", "bf16", 64, 512, 64, (2, 2)),
    "bf16": ("bf16", "bf16", 128, 512, 16, (2, 2)),
    "scaled": ("fp8_ds_mla", "bf16", 24, 512, 64, (2, 2)),
    "f32": ("f8E4M3FN", "f32", 8, 256, 16, (2, 2)),
    "codes": ("f8E4M3FN", "bf16", 8, 512, 16, (2, 2), "f8E4M3FN", "f8E5M2"),
    "scaledcodes": ("fp8_ds_mla", "bf16", 8, 512, 64, (2, 2), "f8E5M2", "bf16"),
}
LENGTHS = {4: "1+0+17+64,33+2+0+90", 2: "1+0,96+31"}


def graph(cache, rows, heads, latent, page, capacity, query_type=None, out_type=None):
    sequences, tokens = capacity
    query_type, out_type = query_type or rows, out_type or rows
    scales = "".join(f", {x}_scale = @layer0.{x}" for x, t in (("q", query_type), ("o", out_type)) if t.startswith("f8"))
    pages = 128 // page
    handle = f"!kvcache.cache<latent {latent} + 64 x {cache}>"
    query, out = f"memref<?x{heads}x{latent + 64}x{query_type}>", f"memref<?x{heads}x{latent}x{out_type}>"
    return f"""
kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
kvcache.scale_buffer @layer0.q : f32 = 7.500000e-01 from override
kvcache.scale_buffer @layer0.o : f32 = 3.000000e-03 from override
kvcache.cache_group @full page_size {page} {{max_pages_per_sequence = {pages} : i64, max_sequences = {sequences} : i64, max_tokens = {tokens} : i64, num_pages = {sequences * pages} : i64}}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : latent {latent} + 64 x {cache} scales(@layer0.k, @layer0.k)
func.func @main(%latent: memref<?x{latent}x{rows}>, %rope: memref<?x64x{rows}>, %q: {query}, %out: {out}, %lse: memref<?x{heads}xf32>) {{
  %c = kvcache.get_cache @layer0 : {handle}
  kvcache.write_latent %latent, %rope to %c : memref<?x{latent}x{rows}>, memref<?x64x{rows}>, {handle}
  kvcache.mla_attention %q over %c outs(%out, %lse) {{softmax_scale = 0.05 : f64{scales}}}
    : {query}, {handle} -> {out}, memref<?x{heads}xf32>
  return
}}
"""


def run(bundle, target, capacity):
    done = subprocess.run(["kvcache-run", bundle, f"--target={target}", f"--lengths={LENGTHS[capacity[0]]}", "--replay=1", "--verify",
                           "--json"], capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"verified": False}, done


def main():
    for name, case in CASES.items():
        source, bundle = os.path.join(FOLDER, name + ".mlir"), os.path.join(FOLDER, name + ".kvb")
        with open(source, "w") as file:
            file.write(graph(*case))
        subprocess.run(["kvcache-compile", source, "--target=sm_80,sm_90", "--ptxas=none", "--quiet", "-o", bundle], check=True)
        for target in ("sm_80", "sm_90"):
            report, done = run(bundle, target, case[5])
            if not report["verified"] or report["layers"][0]["outputs_compared"] == 0 or report["layers"][0]["codes_compared"] == 0:
                sys.exit(f"{name} {target}:\n{done.stdout}{done.stderr}")
    # The launches' own scales, one after the other: none goes unnoticed.
    for name, formulas in (("codes", ("softmax_scale * q_scale * k_scale * log2(e)", "k_scale / o_scale")),
                           ("e4m3", ("softmax_scale * k_scale * log2(e)", "k_scale"))):
        bundle = os.path.join(FOLDER, name + ".kvb")
        path = os.path.join(bundle, "manifest.json")
        with open(path) as file:
            text = file.read()
        for formula in formulas:
            manifest = json.loads(text)
            changed = [a for launch in manifest["targets"][1]["launches"] for a in launch["arguments"] if a.get("from") == formula]
            assert changed, formula
            for argument in changed:
                argument["bits"] = "0x3F000000"
            with open(path, "w") as file:
                json.dump(manifest, file)
            if run(bundle, "sm_90", CASES[name][5])[0]["verified"]:
                sys.exit(f"another {formula} was not noticed")
    layer = json.loads(text)["layers"][0]
    assert layer["head_dim"] == 576 and layer["rope_dim"] == 64 and layer["kv_heads"] == 1, layer
    # A latent layer that does not fit itself is refused.
    for pattern, wrong, message in ((r'"rope_dim": 64', '"rope_dim": 32', "compatibility"), (r'"rope_dim": 64,', "", "compatibility"),
                                    (r'"op": "mla_attention"', '"op": "paged_attention"', "op"),
                                    (r'"v_cache": "layer0.kv_cache"', '"v_cache": "layer0.rope"', "v_cache")):
        changed, count = re.subn(pattern, wrong, text)
        assert count, pattern
        with open(path, "w") as file:
            file.write(changed)
        done = run(bundle, "sm_90", (4, 4))[1]
        if done.returncode != 1 or message not in done.stderr:
            sys.exit(f"{wrong or pattern}: {done.stderr}")


if __name__ == "__main__":
    main()
