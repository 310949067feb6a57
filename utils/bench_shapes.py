#!/usr/bin/env python3
"""Compiles decode shapes from the public record and runs kvcache-bench on them.

Each shape is one layer with an FP8 cache: query and KV heads, head dim, page, batch and the longest context. On a card
(--device=cuda) times are measured; without one the PTX machine counts (see kvcache-bench --help).
"""
import argparse
import os
import subprocess
import sys

# name: query heads, KV heads, head dim, page, sequences, lengths
SHAPES = {
    "b128": (64, 8, 128, 64, 128, [2048]),
    "b32": (8, 1, 128, 64, 32, [32768]),
    "b1": (32, 4, 128, 64, 1, [4096, 65536, 262144]),
    # Small enough for a test: no figure to compare with.
    "small": (8, 1, 128, 16, 2, [128, 512]),
}

GRAPH = """\
kvcache.scale_buffer @layer0.k : f32 = 1.230000e-02 from checkpoint "k_scale"
kvcache.scale_buffer @layer0.v : f32 = 3.450000e-02 from checkpoint "v_scale"
kvcache.cache_group @full page_size {page}
kvcache.cache @layer0 of "layer0" in @full : {kv} x {d} x f8E4M3FN scales(@layer0.k, @layer0.v)
func.func @main(%q: tensor<?x{q}x{d}xbf16>, %k: tensor<?x{kv}x{d}xbf16>, %v: tensor<?x{kv}x{d}xbf16>, %out: tensor<?x{q}x{d}xbf16>) -> tensor<?x{q}x{d}xbf16> {{
  %c = kvcache.get_cache @layer0 : !kvcache.cache<{kv} x {d} x f8E4M3FN>
  kvcache.write %k, %v to %c : tensor<?x{kv}x{d}xbf16>, tensor<?x{kv}x{d}xbf16>, !kvcache.cache<{kv} x {d} x f8E4M3FN>
  %o = kvcache.paged_attention %q over %c outs(%out) {{softmax_scale = {softmax:e} : f64}} : tensor<?x{q}x{d}xbf16>, !kvcache.cache<{kv} x {d} x f8E4M3FN> -> tensor<?x{q}x{d}xbf16>
  return %o : tensor<?x{q}x{d}xbf16>
}}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of the build")
    parser.add_argument("--shapes", default="b128,b32,b1", help=f"of {', '.join(SHAPES)}")
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
        q, kv, d, page, sequences, shape_lengths = SHAPES[name]
        graph = os.path.join(options.out, name + ".mlir")
        with open(graph, "w") as f:
            f.write(GRAPH.format(q=q, kv=kv, d=d, page=page, softmax=d**-0.5))
        bundle = os.path.join(options.out, name + ".kvb")
        pages = max(shape_lengths) // page
        subprocess.run([tool("kvcache-compile"), graph, "--quiet", "--window=0", "--soft-cap=0",
                        f"--target={options.target}", f"--page-size={page}",
                        f"--max-tokens={sequences}", f"--max-sequences={sequences}",
                        f"--max-pages-per-sequence={pages}", f"--num-pages={pages * sequences}", "-o", bundle],
                       check=True)
        bundles.append(bundle)
        lengths.update(shape_lengths)
    if options.compile_only:
        return
    subprocess.run([tool("kvcache-bench"), *bundles, "--lengths=" + ",".join(map(str, sorted(lengths))),
                    f"--json={options.out}/bench.json", f"--svg={options.out}/bench.svg", *options.rest], check=True)


if __name__ == "__main__":
    main()
