"""Compiles writes that rotate keys, verifies them, and shows that the verification would notice another rotation."""

import json
import os
import subprocess
import sys

FOLDER = sys.argv[1]
GROUP = """
kvcache.scale_buffer @k : f32 = 2.500000e-02 from override
kvcache.scale_buffer @v : f32 = 5.000000e-01 from override
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 3 : i64, max_sequences = 2 : i64, max_tokens = 4 : i64, num_pages = 6 : i64}
"""
CACHE = "!kvcache.cache<2 x 64 x f8E4M3FN>"
ROWS, ROPE = "memref<?x2x64xbf16>", "rope(%t at %p : memref<40x32xf32>, memref<?xi64>)"
KEYS = GROUP + "".join(f"""
kvcache.cache @layer{i} of "layers.{i}.attn" in @full : 2 x 64 x f8E4M3FN scales(@k, @v)""" for i in range(2)) + f"""
func.func @main(%k: {ROWS}, %v: {ROWS}, %q: {ROWS}, %o0: {ROWS}, %o1: {ROWS}, %t: memref<40x32xf32>, %p: memref<?xi64>) {{""" + "".join(f"""
  %c{i} = kvcache.get_cache @layer{i} : {CACHE}
  kvcache.write %k, %v to %c{i} {ROPE} {attribute} : {ROWS}, {ROWS}, {CACHE}
  kvcache.paged_attention %q over %c{i} outs(%o{i}) {{softmax_scale = 0.125 : f64}} : {ROWS}, {CACHE} -> {ROWS}""" for i, attribute in
    enumerate(("", "{rope_interleaved}"))) + """
  return
}
"""
LATENT = GROUP + """
kvcache.cache @layer0 of "layers.0.attn" in @full : latent 256 + 64 x f8E4M3FN scales(@k, @k)
func.func @main(%l: memref<?x256xbf16>, %r: memref<?x64xbf16>, %q: memref<?x8x320xbf16>, %o: memref<?x8x256xbf16>, %t: memref<40x64xf32>,
                %p: memref<?xi64>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<latent 256 + 64 x f8E4M3FN>
  kvcache.write_latent %l, %r to %c rope(%t at %p : memref<40x64xf32>, memref<?xi64>) {rope_interleaved}
    : memref<?x256xbf16>, memref<?x64xbf16>, !kvcache.cache<latent 256 + 64 x f8E4M3FN>
  kvcache.mla_attention %q over %c outs(%o) {softmax_scale = 0.125 : f64} : memref<?x8x320xbf16>, !kvcache.cache<latent 256 + 64 x f8E4M3FN> -> memref<?x8x256xbf16>
  return
}
"""

TOKENS, INLINE = (KEYS.replace("scales(@k, @v)", f"scales(@k, @v) token_scales {storage}") for storage in ("side", "inline"))


def run(bundle, target="sm_90", *options):
    result = subprocess.run(["kvcache-run", bundle, "--lengths=20+37,21+38", f"--target={target}", "--verify", "--json", *options],
                            capture_output=True, text=True)
    return result.stdout + result.stderr, result.returncode


for name, text, layers in (("keys", KEYS, 2), ("tokens", TOKENS, 2), ("inline", INLINE, 2), ("latent", LATENT, 1)):
    path, bundle = (os.path.join(FOLDER, name + end) for end in (".mlir", ".kvb"))
    with open(path, "w") as file:
        file.write(text)
    subprocess.run(["kvcache-compile", path, "--ptxas=none", "--target=sm_80,sm_90", "--quiet", "-o", bundle], check=True)
    for target in ("sm_80", "sm_90"):
        output, status = run(bundle, target, "--poison")
        if status:
            sys.exit(output)
    manifest_path = os.path.join(bundle, "manifest.json")
    with open(manifest_path) as file:
        manifest = json.load(file)
    names = [(layer["buffers"]["rope_table"], layer["buffers"]["positions"]) for layer in manifest["layers"]]
    if names != [("rope_table", "positions")] * layers:
        sys.exit(f"{name}: expected one table and one buffer of positions, found {names}")

    def must_notice(what, change, expected):
        changed = json.loads(json.dumps(manifest))
        change(changed)
        with open(manifest_path, "w") as file:
            json.dump(changed, file)
        output, status = run(bundle)
        if not status or expected not in output:
            sys.exit(f"{name}: {what} was not noticed: {status}\n{output}")

    def toggle(manifest):
        layer = manifest["layers"][0]
        layer["rope_interleaved"] = not layer.get("rope_interleaved", False)

    def drop(manifest):
        for member in ("rope_table", "positions"):
            manifest["layers"][0]["buffers"].pop(member)
        manifest["layers"][0].pop("rope_interleaved", None)

    must_notice("the other kind of pairs", toggle, "by the write")
    must_notice("no rotation", drop, "by the write")
    def swap(manifest):
        buffers = manifest["layers"][0]["buffers"]
        buffers["k_scales"], buffers["v_scales"] = buffers["v_scales"], buffers["k_scales"]

    if name == "tokens":
        must_notice("scales of V for those of K", swap, "by the write")
    must_notice("positions without a table", lambda m: m["layers"][0]["buffers"].pop("rope_table"),
                "expected a rope table, positions and keys that are rotated together")
print("ok")
