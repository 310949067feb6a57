"""Copies, writes and attends with strides given at run time, and with the same
strides at compile time; then strides that are refused."""

import json
import os
import subprocess
import sys

import numpy as np

import tensor_files

FOLDER = sys.argv[1]
PAGES, PAGE, KV_HEADS, HEADS, TOKENS = 9, 16, 2, 4, 20


def graph(cache, dim):
    handle = f"!kvcache.cache<{KV_HEADS} x {dim} x {cache}>"
    query, lse, row = f"memref<{TOKENS}x{HEADS}x{dim}xbf16>", f"memref<{TOKENS}x{HEADS}xf32>", f"memref<{TOKENS}x{KV_HEADS}x{dim}xbf16>"
    return f"""
kvcache.scale_buffer @k : f32 = 0.25 from override
kvcache.scale_buffer @v : f32 = 0.5 from override
kvcache.cache_group @full page_size {PAGE}
kvcache.cache @c of "c" in @full : {KV_HEADS} x {dim} x {cache} scales(@k, @v)LAYOUT
func.func @main(%p: memref<2x2xi64>, %k: {row}, %v: {row}, %q: {query}, %o: {query}, %l: {lse}) {{
  %c = kvcache.get_cache @c : {handle}
  kvcache.copy_pages %p in %c : memref<2x2xi64>, {handle}
  kvcache.write %k, %v to %c : {row}, {row}, {handle}
  kvcache.paged_attention %q over %c outs(%o, %l) {{softmax_scale = 0.125 : f64}} : {query}, {handle} -> {query}, {lse}
  return
}}
"""


def compile_bundle(name, text, *more):
    stem = os.path.join(FOLDER, name)
    with open(stem + ".mlir", "w") as file:
        file.write(text)
    subprocess.run(["kvcache-compile", stem + ".mlir", "--ptxas=none", "--quiet", "--target=sm_80", f"--max-tokens={TOKENS}", "--max-sequences=2",
                    "--max-pages-per-sequence=4", f"--num-pages={PAGES}", "-o", stem + ".kvb", *more], check=True, stderr=subprocess.DEVNULL)
    return stem + ".kvb"


def run(bundle, *more, outputs=None):
    command = ["kvcache-run", bundle, "--verify", "--json", *more] + ([f"--outputs={outputs}"] if outputs else [])
    result = subprocess.run(command, capture_output=True, text=True)
    lines = result.stdout.splitlines()
    return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}, result.stderr


def main():
    rng, failures = np.random.default_rng(3), 0

    def check(name, right, why=""):
        nonlocal failures
        print("ok    " if right else "FAILED", name, "" if right else why)
        failures += not right

    bf16 = lambda *shape: (rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    for cache, dim in (("f8E4M3FN", 128), ("bf16", 80)):
        text = graph(cache, dim)
        flexible = compile_bundle(cache, text.replace("LAYOUT", ""), "--runtime-strides")
        if cache == "bf16":
            pool = bf16(2, PAGES, PAGE, KV_HEADS, dim)
        else:
            pool = rng.integers(0x28, 0x48, (2, PAGES, PAGE, KV_HEADS, dim)).astype(np.uint8)
        kind = "BF16" if cache == "bf16" else "F8_E4M3"
        inputs = {"page_table": ("I32", np.int32([[3, 5, 1, 7], [0, -1, -1, -1]])), "lengths": ("I32", np.int32([50, 3])),
                  "query_start": ("I32", np.int32([0, 17, TOKENS])), "slot_mapping": ("I64", np.int64(
                      [3 * PAGE + i if i < 16 else -1 for i in range(17)] + [0, 1, 2])),
                  "c.page_copies": ("I64", np.int64([[4, 5], [-1, 2]])), "c.key": ("BF16", bf16(TOKENS, KV_HEADS, dim)),
                  "c.value": ("BF16", bf16(TOKENS, KV_HEADS, dim)), "c.query": ("BF16", bf16(TOKENS, HEADS, dim)),
                  "c.k_cache": (kind, pool[0]), "c.v_cache": (kind, pool[1])}
        path = os.path.join(FOLDER, cache + ".safetensors")
        tensor_files.write(path, {name: tensor_files.Tensor(*value) for name, value in inputs.items()})
        row = KV_HEADS * dim
        for layout, strides in (("nhd", None), ("hnd", (PAGE * row, dim, PAGE * dim)), ("packed", (2 * PAGE * row, row, dim)),
                                ("strides", (PAGE * (row + 48) + 16, row + 48, dim + 16))):
            words = f" layout strides [{strides[0]}, {strides[1]}, {strides[2]}]" if layout == "strides" else f" layout {layout}"
            fixed = compile_bundle(f"{cache}.{layout}", text.replace("LAYOUT", words))
            given = [f"--strides=c.{side}_cache=" + ",".join(map(str, strides)) for side in "kv"] if strides else []
            found, why = run(flexible, f"--inputs={path}", *given, outputs=path + ".out")
            expected, _ = run(fixed, f"--inputs={path}", outputs=path + ".fixed")
            right = bool(found.get("verified") and expected.get("verified"))
            if right:
                mine, other = tensor_files.read(path + ".out"), tensor_files.read(path + ".fixed")
                right = all(mine[name].data.tobytes() == other[name].data.tobytes()
                            for name in ("c.k_cache", "c.v_cache", "c.output", "c.lse"))
            check(f"{cache} {layout}", right, why[-1500:] + str(found)[:300])

    for name, bundle, strides, message in (
            ("overlap", flexible, "c.k_cache=2560,160,79", "with which no row overlaps another, found [2560, 160, 79, 1]"),
            ("alignment", flexible, "c.k_cache=2564,160,80", "multiples of 16 bytes"),
            ("no cache", flexible, "lengths=2560,160,80", "lengths: expected the name of a cache"),
            ("compiled in", fixed, "c.k_cache=2560,160,80", "in its code; compile with runtime-strides"),
            ("two numbers", flexible, "c.k_cache=2560,160", "expected NAME=PAGE,TOKEN,HEAD, found")):
        _, why = run(bundle, f"--strides={strides}")
        if message not in why:
            check(name, False, why)
    print(failures, "failures")
    return failures


if __name__ == "__main__":
    sys.exit(main())
