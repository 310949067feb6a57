"""A plain paged attention in Triton, compiled for sm_90: paged_decode.py FOLDER

One program is one query head of one row; it walks the keys one at a time, as
nobody would who cares for speed.
"""
import json
import os
import sys
import warnings

warnings.simplefilter("ignore")
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def paged_decode(q, k_cache, v_cache, table, lengths, query_start, out, score_scale, output_scale, max_pages,
                 sequences, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):
    head = tl.program_id(0)
    row = tl.program_id(1)
    rows = tl.load(query_start + sequences)
    if row < rows:
        sequence = 0
        for i in range(1, sequences):
            sequence = tl.where(row >= tl.load(query_start + i), i, sequence)
        first = tl.load(query_start + sequence)
        last = tl.load(query_start + sequence + 1)
        visible = tl.load(lengths + sequence) - (last - first) + (row - first) + 1
        d = tl.arange(0, D)
        query = tl.load(q + (row * HEADS + head) * D + d).to(tl.float32)
        kv_head = head // (HEADS // KV_HEADS)
        best = -float("inf")
        total = 0.0
        value = tl.zeros((D,), tl.float32)
        for t in range(0, visible):
            page = tl.load(table + sequence * max_pages + t // PAGE).to(tl.int64)
            place = ((page * PAGE + t % PAGE) * KV_HEADS + kv_head) * D + d
            key = tl.load(k_cache + place).to(tl.float32)
            score = tl.sum(query * key, 0) * score_scale
            largest = tl.maximum(best, score)
            keep = tl.exp2(best - largest)
            weight = tl.exp2(score - largest)
            total = total * keep + weight
            value = value * keep + weight * tl.load(v_cache + place).to(tl.float32)
            best = largest
        result = tl.where(visible > 0, value / total * output_scale, 0.0)
        tl.store(out + (row * HEADS + head) * D + d, result.to(tl.bfloat16))


folder = sys.argv[1]
constants = {"HEADS": 4, "KV_HEADS": 2, "D": 64, "PAGE": 16}
signature = {"q": "*bf16", "k_cache": "*fp8e4nv", "v_cache": "*fp8e4nv", "table": "*i32", "lengths": "*i32",
             "query_start": "*i32", "out": "*bf16", "score_scale": "fp32", "output_scale": "fp32",
             "max_pages": "i32", "sequences": "i32"}
source = ASTSource(fn=paged_decode, signature={**signature, **{k: "constexpr" for k in constants}},
                   constexprs=constants)
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
os.makedirs(folder, exist_ok=True)
metadata = kernel.metadata._asdict()
metadata["target"] = vars(metadata["target"]) if not hasattr(metadata["target"], "_asdict") else metadata[
    "target"]._asdict()
with open(os.path.join(folder, "paged_decode.json"), "w") as f:
    json.dump(metadata, f, default=str)
with open(os.path.join(folder, "paged_decode.ptx"), "w") as f:
    f.write(kernel.asm["ptx"])
with open(os.path.join(folder, "mapping.json"), "w") as f:
    json.dump({"arguments": ["query", "k_cache", "v_cache", "page_table", "lengths", "query_start", "output",
                             "score_scale", "output_scale", {"i32": 4}, {"i32": 2}, "null", "null"],
               "grid": ["query_heads", "max_tokens", 1]}, f)
