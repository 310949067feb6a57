#!/usr/bin/env python3
"""The kernels on the PTX machine against the reference lowering of the same
graph: cache bytes bit for bit, the output within one step of its type and 2^-9
of the row's sum of |p v| (probabilities are f16 in the kernels), the LSE within
1e-5.

The sum of |p v| is the reference lowering's own output over values without sign.
"""

import os
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

import tensor_files
from cpu_model import CpuModel
from reference_semantics import LARGEST, TYPES, Batch, Case, Suite, bits, call

CAPACITIES = ["--max-tokens=9", "--max-sequences=3", "--max-pages-per-sequence=4"]
DTYPES = {"f8E4M3FN": "F8_E4M3", "f8E5M2": "F8_E5M2", "bf16": "BF16", "f16": "F16", "f32": "F32"}
SIGN = {1: 0x7F, 2: 0x7FFF, 4: 0x7FFFFFFF}


def tensor(array, name):
    return tensor_files.Tensor(DTYPES[name], array.view(np.float16) if name == "f16" else array)


def unsigned(array):
    return array & array.dtype.type(SIGN[array.itemsize])


def values(array, name):
    return array.view(TYPES[name]).astype(np.float64)


def run_reference(model, case, batch, pools):
    out = np.zeros((*batch.query.shape[:2], case.v_dim), bits(batch.query).dtype)
    lse = np.zeros(out.shape[:2], np.uint32)
    return call(model, case, batch, pools, out, lse)


def main():
    failures = 0
    rng = np.random.default_rng(20261130)
    with tempfile.TemporaryDirectory() as work:
        suite = Suite("kvcache-opt", work)
        for number, case in enumerate((
                Case("e4m3 NHD"),
                Case("e4m3 HND, f16 rows, scales per head", layout="hnd", rows="f16", k_scale=(0.01, 0.3),
                     v_scale=(0.5, 0.02)),
                Case("e4m3 packed, window 5, soft cap", layout="packed", window=5, cap=2.0),
                Case("e4m3, padded heads and pages, heads outside", layout="strides [2592, 80, 1296]"),
                Case("e5m2, group of 7, D 128", cache="f8E5M2", q_heads=7, kv_heads=1, dim=128, k_scale=(0.25,),
                     v_scale=(0.5,), softmax=0.09),
                Case("rope of 32 of 128 elements, e5m2", cache="f8E5M2", dim=128, rotary=32, softmax=0.09),
                Case("scales of tokens, HND, rope, window 9", token_scales="side", layout="hnd", rotary=64, window=9),
                Case("rows that end in their scale", token_scales="inline", window=9),
                Case("values of 64 beside keys of 96, in rows that end in their scale", dim=96, v_dim=64, layout="packed", token_scales="inline"),
                Case("rows that end in their scale, padded", token_scales="inline", layout="strides [2560, 160, 80]", rotary=64),
                Case("rope in pairs, bf16 cache", cache="bf16", rotary=64, interleaved=True, softmax=0.3),
                Case("values of 128 beside keys of 192, HND", dim=192, v_dim=128, layout="hnd", softmax=0.07),
                Case("values of 80 beside keys of 64, packed, rope, scales of tokens", v_dim=80, layout="packed", rotary=64, token_scales="side"),
                Case("values of 64 beside keys of 128, f16 cache, window 7", dim=128, v_dim=64, rows="f16", cache="f16", window=7),
                Case("bf16 cache", cache="bf16", softmax=0.3))):
            # One decode row over 37 tokens, an empty sequence, seven rows of a prompt; one row of padding.
            batch = suite.batch(case, rng, lengths=(37, 0, 7), counts=(1, 0, 7), padding=1)
            batch.slots[batch.slots >= case.pages * case.page] = -1
            batch.table = np.pad(batch.table, ((0, 0), (0, 4 - batch.table.shape[1])), constant_values=-1)
            pools = case.pools()
            # Tokens of the earlier steps; whatever else is in the pool stays NaN.
            for pool in pools:
                for token in range(36):
                    history = rng.standard_normal((case.kv_heads, pool.shape[-1])) * (50 if case.cache in LARGEST else 1)
                    pool[batch.table[0, token // case.page], token % case.page] = bits(
                        history.astype(np.float32).astype(TYPES[case.cache]))
            for scales in pools.scales:
                for token in range(36):
                    scales[batch.table[0, token // case.page], token % case.page] = 0.01 * 2.0 ** rng.uniform(-5, 5, case.kv_heads)
            stem = os.path.join(work, str(number))
            with open(stem + ".mlir", "w") as file:
                file.write(case.text())
            subprocess.run(["kvcache-compile", stem + ".mlir", "--ptxas=none", "--quiet", "--target=sm_80", *CAPACITIES,
                            f"--num-pages={case.pages}", "-o", stem + ".kvb"], check=True, stderr=subprocess.DEVNULL)
            inputs = {"arg0": tensor(bits(batch.key), case.rows), "arg1": tensor(bits(batch.value), case.rows),
                      "arg2": tensor(bits(batch.query), case.rows), "arg3": tensor(np.zeros((*batch.query.shape[:2], case.v_dim), bits(batch.query).dtype), case.rows),
                      "arg4": tensor_files.Tensor("F32", np.zeros(batch.query.shape[:2], np.float32)),
                      **{f"c.{side}_cache": tensor_files.Tensor("U8", np.ascontiguousarray(pool)) if case.token_scales == "inline"
                         else tensor(np.ascontiguousarray(pool), case.cache) for side, pool in zip("kv", pools.memory)},
                      "page_table": tensor_files.Tensor("I32", batch.table), "lengths": tensor_files.Tensor("I32", batch.lengths),
                      "query_start": tensor_files.Tensor("I32", batch.starts),
                      "slot_mapping": tensor_files.Tensor("I64", batch.slots)}
            for side, scales in zip("kv", pools.scales if case.token_scales == "side" else ()):
                inputs[f"c.{side}_scales"] = tensor_files.Tensor("F32", scales)
            if case.rotary:
                inputs.update(cos_sin=tensor_files.Tensor("F32", case.rope_table()),
                              position_ids=tensor_files.Tensor("I64", batch.positions))
            tensor_files.write(stem + ".in.safetensors", inputs)
            subprocess.run(["kvcache-run", stem + ".kvb", "--host", "--quiet", f"--inputs={stem}.in.safetensors",
                            f"--outputs={stem}.out.safetensors"], check=True, stdout=subprocess.DEVNULL)
            got = tensor_files.read(stem + ".out.safetensors")

            model = CpuModel("kvcache-opt", stem + ".mlir", work, stem=f"reference{number}")
            # The magnitude first: both runs write their rows into the pools.
            plain, positive = case.pools(), case.pools()
            for fresh in (plain, positive):
                for pool, history in zip((*fresh, *fresh.scales), (*pools, *pools.scales)):
                    pool[...] = history
            positive[1][...] = unsigned(pools[1])
            flipped = Batch(batch.key, unsigned(bits(batch.value)).view(batch.value.dtype), batch.query, batch.table,
                            batch.lengths, batch.starts, batch.slots, batch.positions)
            magnitude = values(run_reference(model, case, flipped, positive)[0], case.rows)
            out, lse = run_reference(model, case, batch, plain)

            codes = sum(int((got[f"c.{side}_cache"].data.view(pool.dtype) != pool).sum())
                        for side, pool in zip("kv", plain.memory))
            if case.token_scales == "side":
                codes += sum(int((got[f"c.{side}_scales"].data.view(np.uint32) != scales.view(np.uint32)).sum())
                             for side, scales in zip("kv", plain.scales))
            rows = int(batch.starts[-1])
            kernel, exact = values(bits(got["result0"].data), case.rows)[:rows], values(out, case.rows)[:rows]
            step = np.abs(exact) * float(ml_dtypes.finfo(TYPES[case.rows]).eps)
            # Probabilities are bf16 over a bf16 cache.
            bound = 2.0 ** (-8 if case.cache == "bf16" else -9)
            error = float((np.abs(kernel - exact) / (step + bound * magnitude[:rows])).max())
            lse_error = float(np.abs(got["result1"].data[:rows] - lse.view(np.float32)[:rows]).max())
            written = sum(int((pool != before).sum()) for pool, before in zip(plain, pools))
            right = codes == 0 and error <= 1 and lse_error <= 1e-5 and written > 0 and bool(np.abs(exact).max() > 0)
            print("ok    " if right else "FAILED", case.name,
                  {"cache bytes": codes, "error of allowed": round(error, 3), "lse": f"{lse_error:.1e}"})
            failures += not right
    print(f"{failures} failures")
    return failures


if __name__ == "__main__":
    sys.exit(main())
