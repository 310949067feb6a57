#!/usr/bin/env python3
"""Measures how long compiling takes, as whole processes.

  * one decode kernel (64 query and 8 KV heads of 128), MLIR to cubin, beside
    Triton compiling a paged decode kernel of the same shape in the same run;
  * graphs of 42, 84 and 126 layers with their checkpoints to a bundle: time,
    peak memory, and the number of kernels, which does not grow.

With --variants instead: every variant of the kernels of attention and MLA, a
process each, in seconds of CPU time (user and system), which other work on the
machine disturbs less than those of a clock.

Needs ptxas; the comparison needs the triton package.
"""

import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HEADS, KV_HEADS, DIM = 64, 8, 128


def kernel_source(heads=HEADS, kv_heads=KV_HEADS, dim=DIM, page=16, cache="f8E4M3FN", query="bf16", out=None, tokens=32,
                  attributes="", latent=0):
    """A graph of one attention op; `latent`: over a latent cache with rows of so many elements and 64 more."""
    scale = "1.250000e-02 from override" if cache.startswith("f8") else "1.000000e+00 from default"
    op, second = "paged_attention", "v"
    if latent:
        cache, op, second, dim = f"latent {latent} + 64 x {cache}", "mla_attention", "k", latent + 64
    else:
        cache = f"{kv_heads} x {dim} x {cache}"
    queries = f"memref<{tokens}x{heads}x{dim}x{query}>"
    output = f"memref<{tokens}x{heads}x{latent or dim}x{out or query}>"
    symbols = "".join(f"kvcache.scale_buffer @layer0.{s} : f32 = {scale}\n" for s in dict.fromkeys(("k", second)))
    return f"""{symbols}\
kvcache.cache_group @full page_size {page} {{max_pages_per_sequence = 128 : i64, max_sequences = 32 : i64, max_tokens = {tokens} : i64, num_pages = 4096 : i64}}
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : {cache} scales(@layer0.k, @layer0.{second})
func.func @main(%q: {queries}, %out: {output}) {{
  %c = kvcache.get_cache @layer0 : !kvcache.cache<{cache}>
  kvcache.{op} %q over %c outs(%out) {{softmax_scale = 0.08838834764831845 : f64{attributes}}}
    : {queries}, !kvcache.cache<{cache}> -> {output}
  return
}}
"""


def variants():
    """(family, name, arguments of kernel_source, options of kvcache-compile) of the kernels of attention."""
    for tokens, family in ((32, "decode"), (512, "prefill")):
        for dim in (64, 80, 96, 112, 128, 192, 256):
            yield family, f"head dim {dim}", dict(dim=dim, tokens=tokens), {}
        for group in (1, 4, 16, 71):
            yield family, f"group {group}", dict(heads=group, kv_heads=1, tokens=tokens), {}
        for page in (1, 64, 512):
            yield family, f"page {page}", dict(page=page, tokens=tokens), {}
        for query in ("f16", "f32"):
            yield family, f"{query} queries", dict(query=query, tokens=tokens), {}
        yield family, "e5m2", dict(cache="f8E5M2", tokens=tokens), {}
        yield family, "window", dict(attributes=", window = 511 : i64", tokens=tokens), {"window": 512}
        yield family, "soft cap", dict(attributes=", soft_cap = 30.0 : f64", tokens=tokens), {"soft-cap": 30}
    yield "decode", "bf16 cache", dict(cache="bf16"), {}
    yield "decode", "4 rows", dict(tokens=128), {}
    for heads in (16, 32, 64, 128):
        yield "MLA", f"{heads} heads", dict(heads=heads, latent=512), {}
    for cache in ("f8E5M2", "bf16", "fp8_ds_mla"):
        yield "MLA", f"{cache}, 64 heads", dict(latent=512, cache=cache), {}
    yield "MLA", "256 + 64, 64 heads", dict(latent=256), {}


TRITON = '''
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget


@triton.jit
def decode(q, k_pages, v_pages, table, lengths, out, scale, v_scale, table_stride,
           HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
           ROWS: tl.constexpr):
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    group = HEADS // KV_HEADS
    rows, dims, tokens = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, PAGE)
    heads = kv_head * group + rows
    inside = rows < group
    queries = tl.load(q + (sequence * HEADS + heads)[:, None] * DIM + dims[None, :],
                      mask=inside[:, None], other=0.0)
    length = tl.load(lengths + sequence)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(0, length, PAGE):
        page = tl.load(table + sequence * table_stride + start // PAGE).to(tl.int64)
        at = ((page * PAGE + tokens) * KV_HEADS + kv_head) * DIM
        seen = start + tokens < length
        keys = tl.load(k_pages + at[None, :] + dims[:, None], mask=seen[None, :], other=0.0).to(tl.bfloat16)
        scores = tl.dot(queries, keys) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - new[:, None])
        factor = tl.exp2(best - new)
        total = total * factor + tl.sum(weights, 1)
        values = tl.load(v_pages + at[:, None] + dims[None, :], mask=seen[:, None], other=0.0).to(tl.bfloat16)
        result = result * factor[:, None] + tl.dot(weights.to(tl.bfloat16), values)
        best = new
    result = result * v_scale / total[:, None]
    tl.store(out + (sequence * HEADS + heads)[:, None] * DIM + dims[None, :], result.to(tl.bfloat16),
             mask=inside[:, None])


signature = {"q": "*bf16", "k_pages": "*fp8e4nv", "v_pages": "*fp8e4nv", "table": "*i32", "lengths": "*i32",
             "out": "*bf16", "scale": "fp32", "v_scale": "fp32", "table_stride": "i32", "HEADS": "constexpr",
             "KV_HEADS": "constexpr", "DIM": "constexpr", "PAGE": "constexpr", "ROWS": "constexpr"}
constants = {"HEADS": HEADS_, "KV_HEADS": KV_HEADS_, "DIM": DIM_, "PAGE": 16, "ROWS": 16}
source = triton.compiler.ASTSource(fn=decode, signature=signature, constexprs=constants)
import time
start = time.perf_counter()
compiled = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32))
print(time.perf_counter() - start, len(compiled.asm["cubin"]))
'''


def timed(command, repeats, environment=None):
    """Median, minimum and maximum of wall seconds, and what was printed last."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        seconds.append(time.perf_counter() - start)
        if result.returncode:
            sys.exit(f"{' '.join(command)}\n{result.stderr}")
    return statistics.median(seconds), min(seconds), max(seconds), result.stdout


def cpu_seconds(command, repeats):
    """Median of the user and system seconds of a process."""
    seconds = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        timed(command, 1)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(seconds)


def compile_command(compiler, source, arch, bundle, **options):
    given = {"softmax-scale": 0.08838834764831845, "soft-cap": 0, "window": 0, **options}
    return [compiler, source, f"--target=sm_{arch}", "--quiet", *(f"--{k}={v}" for k, v in given.items()), "-o", bundle]


def measure_variants(compiler, folder, repeats):
    """{family: [(seconds, name)]}, the slowest first."""
    found = {}
    for n, (family, name, arguments, options) in enumerate(variants()):
        source = os.path.join(folder, f"variant{n}.mlir")
        with open(source, "w") as file:
            file.write(kernel_source(**arguments))
        for arch in (80, 90):
            command = compile_command(compiler, source, arch, os.path.join(folder, "variant.kvb"), **options)
            found.setdefault(f"{family}, sm_{arch}", []).append((cpu_seconds(command, repeats), name))
    return {family: sorted(rows, reverse=True) for family, rows in found.items()}


def safetensors(path, scales):
    header, data = {}, b""
    for name, value in scales.items():
        header[name] = {"dtype": "F32", "shape": [], "data_offsets": [len(data), len(data) + 4]}
        data += struct.pack("<f", value)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_model(folder, layers):
    """A graph of attention layers with foreign ops between them, and its
    checkpoint."""
    q, kv = f"tensor<?x{HEADS}x{DIM}xbf16>", f"tensor<?x{KV_HEADS}x{DIM}xbf16>"
    lines = [f"func.func @main(%x0: {q}, %k: {kv}, %v: {kv}, %out: {q}) -> {q} {{"]
    for i in range(layers):
        name = f'layer_name = "model.layers.{i}.self_attn.attn"'
        lines += [
            f'  %t{i} = "vllm.unified_kv_cache_update"(%k, %v) {{{name}, mutated = [], operand_names = ["key", "value"]}}'
            f" : ({kv}, {kv}) -> tensor<0xbf16>",
            f'  %o{i} = "vllm.unified_attention_with_output"(%x{i}, %k, %v, %out, %t{i}) {{{name}, mutated = ["output"],'
            f' operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"]}}'
            f" : ({q}, {kv}, {kv}, {q}, tensor<0xbf16>) -> {q}",
            f"  %x{i + 1} = linalg.add ins(%x{i}, %o{i} : {q}, {q}) outs(%x{i} : {q}) -> {q}"]
    lines += [f"  return %x{layers} : {q}", "}"]
    graph = os.path.join(folder, f"graph{layers}.mlir")
    with open(graph, "w") as file:
        file.write("\n".join(lines))
    checkpoint = os.path.join(folder, f"checkpoint{layers}")
    os.mkdir(checkpoint)
    safetensors(os.path.join(checkpoint, "model.safetensors"),
                {f"model.layers.{i}.self_attn.{s}_proj.{s}_scale": 0.01 + i * 1e-4
                 for i in range(layers) for s in "kv"})
    config = {"model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": HEADS * DIM, "head_dim": DIM,
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "num_hidden_layers": layers,
              "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8",
                                      "kv_cache_quant_algo": "FP8"}}
    with open(os.path.join(checkpoint, "config.json"), "w") as file:
        json.dump(config, file)
    return graph, checkpoint


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of the build")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--variants", action="store_true", help="compile every variant of the attention kernels")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    options = parser.parse_args()
    compiler = os.path.join(os.path.abspath(options.build), "bin", "kvcache-compile")
    if options.variants:
        with tempfile.TemporaryDirectory() as folder:
            found = measure_variants(compiler, folder, options.repeats)
        if options.json:
            print(json.dumps(found))
            return
        print("| kernels | variants | median | slowest | which |\n|---|---|---|---|---|")
        for family, rows in found.items():
            print(f"| {family} | {len(rows)} | {statistics.median(t for t, _ in rows):.3f} | {rows[0][0]:.3f} | {rows[0][1]} |")
        return
    report = {"kernel": {}, "layers": {}}

    with tempfile.TemporaryDirectory() as folder:
        kernel = os.path.join(folder, "kernel.mlir")
        with open(kernel, "w") as file:
            file.write(kernel_source())
        script = os.path.join(folder, "decode.py")
        with open(script, "w") as file:
            file.write(TRITON.replace("KV_HEADS_", str(KV_HEADS)).replace("HEADS_", str(HEADS)).replace("DIM_", str(DIM)))
        for arch in (80, 90):
            command = compile_command(compiler, kernel, arch, os.path.join(folder, "kernel.kvb"))
            row = {"kvcache": timed(command, options.repeats)[:3]}
            try:
                import triton  # noqa: F401
            except ImportError:
                triton = None
            # The kernel converts FP8, which Triton does from sm_89 on.
            if triton and arch >= 89:
                cold, inner = [], []
                for _ in range(options.repeats):
                    with tempfile.TemporaryDirectory() as cache:
                        result = timed([sys.executable, script, str(arch)], 1, dict(os.environ, TRITON_CACHE_DIR=cache))
                    cold.append(result[0])
                    inner.append(float(result[3].split()[0]))
                row["triton"] = (statistics.median(cold), min(cold), max(cold))
                row["triton_compile"] = (statistics.median(inner), min(inner), max(inner))
            report["kernel"][f"sm_{arch}"] = row
        for layers in (42, 84, 126):
            graph, checkpoint = write_model(folder, layers)
            bundle = os.path.join(folder, f"model{layers}.kvb")
            seconds = timed([compiler, graph, f"--checkpoint={checkpoint}", "--target=sm_90", "--quiet", "-o", bundle],
                            options.repeats)[:3]
            with open(os.path.join(bundle, "manifest.json")) as file:
                kernels = len(json.load(file)["targets"][0]["kernels"])
            report["layers"][layers] = {"seconds": seconds, "kernels": kernels}
        report["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024

    if options.json:
        print(json.dumps(report))
        return
    show = lambda times: f"{times[0]:.3f} s ({times[1]:.3f} to {times[2]:.3f})"
    print(f"One decode kernel to a cubin, median of {options.repeats} (minimum to maximum):")
    for arch, row in report["kernel"].items():
        print(f"  {arch}  kvcache-compile, whole process   {show(row['kvcache'])}")
        if "triton" in row:
            print(f"  {arch}  Triton, whole process, cold      {show(row['triton'])}")
            print(f"  {arch}  Triton, triton.compile alone     {show(row['triton_compile'])}")
    print("Graph and checkpoint to a bundle for sm_90:")
    for layers, row in report["layers"].items():
        print(f"  {layers:4d} layers  {show(row['seconds'])}, {row['kernels']} kernels")
    print(f"Peak memory of a process: {report['peak_memory_mb']:.0f} MB (Triton included where it ran)")


if __name__ == "__main__":
    main()
