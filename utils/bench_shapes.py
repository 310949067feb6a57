#!/usr/bin/env python3
"""Compiles decode, prefill and MLA shapes from the public record and runs kvcache-bench on them.

Each shape is one layer with an FP8 cache: query and KV heads, head dim, page, batch, the longest context and the new
tokens of a sequence. On a card
(--device=cuda) times are measured; without one the PTX machine counts (see kvcache-bench --help).
"""
import argparse
import os
import subprocess
import sys

# name: query heads, KV heads (0: MLA's latent rows), head dim, page, sequences, lengths, new tokens of each sequence
SHAPES = {
    "b128": (64, 8, 128, 64, 128, [2048], 1),
    "b32": (8, 1, 128, 64, 32, [32768], 1),
    "b1": (32, 4, 128, 64, 1, [4096, 65536, 262144], 1),
    "prefill": (32, 8, 128, 64, 4, [4096], 4096),
    "mla": (128, 0, 576, 64, 128, [4096], 1),
    # Small enough for a test: no figure to compare with.
    "small": (8, 1, 128, 16, 2, [128, 512], 1),
    "small-prefill": (8, 2, 64, 16, 1, [64], 64),
    "small-mla": (16, 0, 576, 16, 1, [128], 1),
}
ROPE = 64  # of a latent row's dims


def latent_graph(q, d):
    """One layer of MLA: a write and an attention over latent rows."""
    query, out, handle = f"tensor<?x{q}x{d}xbf16>", f"tensor<?x{q}x{d - ROPE}xbf16>", f"!kvcache.cache<latent {d - ROPE} + {ROPE} x f8E4M3FN>"
    latent, rope = f"tensor<?x{d - ROPE}xbf16>", f"tensor<?x{ROPE}xbf16>"
    return f"""\
kvcache.scale_buffer @layer0.k : f32 = 1.23e-2 from checkpoint "k_scale"
kvcache.cache_group @full page_size PAGE
kvcache.cache @layer0 of "layer0" in @full : latent {d - ROPE} + {ROPE} x f8E4M3FN scales(@layer0.k, @layer0.k)
func.func @main(%q: {query}, %latent: {latent}, %rope: {rope}, %out: {out}) -> {out} {{
  %c = kvcache.get_cache @layer0 : {handle}
  kvcache.write_latent %latent, %rope to %c : {latent}, {rope}, {handle}
  %o = kvcache.mla_attention %q over %c outs(%out) {{softmax_scale = {(128 + ROPE)**-0.5:e} : f64}} : {query}, {handle} -> {out}
  return %o : {out}
}}
"""


def graph(q, kv, d, cache="f8E4M3FN", query="bf16", per_head=False, lse=False):
    """One layer: a write and an attention."""
    if kv == 0:
        return latent_graph(q, d)
    scales = [0.0123, 0.0345] if cache.startswith("f8") else [1.0, 1.0]
    heads = [f"[{', '.join(f'{s * (1 + h / 10):e}' for h in range(kv))}]" if per_head else f"{s:e}" for s in scales]
    rows, queries, handle = f"tensor<?x{kv}x{d}x{query}>", f"tensor<?x{q}x{d}x{query}>", f"!kvcache.cache<{kv} x {d} x {cache}>"
    extra = f", %lse: tensor<?x{q}xf32>" if lse else ""
    types = f"{queries}, tensor<?x{q}xf32>" if lse else queries
    result = f"%o:2 = kvcache.paged_attention %q over %c outs(%out, %lse)" if lse else \
        "%o = kvcache.paged_attention %q over %c outs(%out)"
    returned = "return %o#0, %o#1" if lse else "return %o"
    return f"""\
kvcache.scale_buffer @layer0.k : f32 = {heads[0]} from checkpoint "k_scale"
kvcache.scale_buffer @layer0.v : f32 = {heads[1]} from checkpoint "v_scale"
kvcache.cache_group @full page_size PAGE
kvcache.cache @layer0 of "layer0" in @full : {kv} x {d} x {cache} scales(@layer0.k, @layer0.v)
func.func @main(%q: {queries}, %k: {rows}, %v: {rows}, %out: {queries}{extra}) -> ({types}) {{
  %c = kvcache.get_cache @layer0 : {handle}
  kvcache.write %k, %v to %c : {rows}, {rows}, {handle}
  {result} {{softmax_scale = {d**-0.5:e} : f64}} : {queries}, {handle} -> {types}
  {returned} : {types}
}}
"""


def compile_bundle(tool, folder, name, text, page, layout, sequences, pages, new_tokens, targets, window=0, soft_cap=0):
    """Writes NAME.kvb into `folder`; returns its path."""
    source, bundle = os.path.join(folder, name + ".mlir"), os.path.join(folder, name + ".kvb")
    with open(source, "w") as f:
        f.write(text.replace("PAGE", str(page)))
    subprocess.run([tool, source, "--quiet", f"--window={window}", f"--soft-cap={soft_cap}", f"--target={targets}", f"--page-size={page}",
                    f"--kv-layout={layout}", f"--max-tokens={sequences * new_tokens}", f"--max-sequences={sequences}",
                    f"--max-pages-per-sequence={pages}", f"--num-pages={pages * sequences}", "-o", bundle], check=True)
    os.remove(source)
    return bundle


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of the build")
    parser.add_argument("--shapes", default="b128,b32,b1,prefill,mla", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--out", default="bench", help="folder for bundles, JSON and plot")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("rest", nargs="*", help="options for kvcache-bench, after --")
    options = parser.parse_args()
    binaries = os.path.join(os.path.abspath(options.build), "bin")
    os.makedirs(options.out, exist_ok=True)

    def tool(name):
        path = os.path.join(binaries, name)
        return path if os.path.exists(path) else name

    bundles, lengths = [], set()
    for name in options.shapes.split(","):
        if name not in SHAPES:
            sys.exit(f"bench_shapes.py: error: --shapes: expected some of {', '.join(SHAPES)}, found \"{name}\"")
        q, kv, d, page, sequences, shape_lengths, new_tokens = SHAPES[name]
        bundles.append(compile_bundle(tool("kvcache-compile"), options.out, name, graph(q, kv, d), page, "nhd", sequences,
                                      max(shape_lengths) // page, new_tokens, options.target))
        lengths.update(shape_lengths)
    if options.compile_only:
        return
    subprocess.run([tool("kvcache-bench"), *bundles, "--lengths=" + ",".join(map(str, sorted(lengths))),
                    f"--json={options.out}/bench.json", f"--svg={options.out}/bench.svg", *options.rest], check=True)


if __name__ == "__main__":
    main()
