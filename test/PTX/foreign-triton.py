# REQUIRES: triton
# RUN: env KVCACHE_PTX_LIB=%ptx_lib %python %s
"""PTX that Triton made (no GPU needed) runs and agrees with numpy: vector add,
softmax, a matmul and causal attention with mma.sync. Triton's matmul for sm_90 uses wgmma: refused,
with the opcode and its line."""

import os
import sys
import warnings

warnings.simplefilter("ignore")
import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, os.path.dirname(__file__))
import ptx_machine


@triton.jit
def vadd(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


@triton.jit
def softmax(x, o, stride, n, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    m = c < n
    v = tl.load(x + r * stride + c, mask=m, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(o + r * stride + c, v / tl.sum(v, 0), mask=m)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)


@triton.jit
def attention(q, k, v, o, scale, N, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head = tl.program_id(1)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rd, rn = tl.arange(0, D), tl.arange(0, BN)
    base = head * N * D
    x = tl.load(q + base + rm[:, None] * D + rd[None, :])
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        y = tl.load(k + base + (start + rn)[None, :] * D + rd[:, None])
        s = tl.dot(x, y) * scale
        s = tl.where(rm[:, None] >= (start + rn)[None, :], s, -float("inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        keep = tl.exp2(top - higher)
        total = total * keep + tl.sum(p, 1)
        z = tl.load(v + base + (start + rn)[:, None] * D + rd[None, :])
        acc = tl.dot(p.to(tl.float16), z, acc * keep[:, None])
        top = higher
    tl.store(o + base + rm[:, None] * D + rd[None, :], acc / total[:, None])


machine = ptx_machine.Machine()
rng = np.random.default_rng(1)
random = lambda *s: rng.standard_normal(s).astype(np.float32)


def check(condition, what):
    if not condition:
        sys.exit("failed: " + what)


def compiled(fn, signature, constants, capability):
    source = ASTSource(fn=fn, signature={**signature, **{k: "constexpr" for k in constants}}, constexprs=constants)
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    return machine.module(kernel.asm["ptx"], f"{kernel.metadata.name}-{capability}"), kernel.metadata


def run(module, metadata, grid, arguments, output):
    """Triton's kernels take two more pointers, to scratch memory."""
    handle = machine.output(output, "out")
    arguments = [handle if a is output else machine.buffer(a, "in") if isinstance(a, np.ndarray) and a.ndim else a
                 for a in arguments]
    known = machine.describe(module)[metadata.name]["parameters"]
    arguments += [0] * (len(known) - len(arguments))
    report = machine.launch(module, metadata.name, grid, (32 * metadata.num_warps,), metadata.shared, arguments)
    check(not report["findings"], f"{metadata.name}: {report['findings'][:2]}")
    check(machine.initialised(handle, output.nbytes).all(), metadata.name + ": every byte written")
    machine.clear()
    return report


i32 = np.int32
for capability in (80, 90):
    module, meta = compiled(vadd, dict(x="*fp32", y="*fp32", o="*fp32", n="i32"), dict(B=1024), capability)
    x, y, z = random(5000), random(5000), np.zeros(5000, np.float32)
    run(module, meta, (5,), [x, y, z, i32(5000)], z)
    check(np.array_equal(z, x + y), f"vadd sm_{capability}")

    module, meta = compiled(softmax, dict(x="*fp32", o="*fp32", stride="i32", n="i32"), dict(B=1024), capability)
    s, r = random(7, 777), np.zeros((7, 777), np.float32)
    run(module, meta, (7,), [s, r, i32(777), i32(777)], r)
    e = np.exp(s.astype(np.float64) - s.max(1, keepdims=True))
    check(np.abs(r - e / e.sum(1, keepdims=True)).max() < 1e-6, f"softmax sm_{capability}")

    module, meta = compiled(matmul, dict(a="*fp16", b="*fp16", c="*fp32", M="i32", N="i32", K="i32"),
                            dict(BM=64, BN=64, BK=32), capability)
    a, b, c = random(128, 96).astype(np.float16), random(96, 128).astype(np.float16), np.zeros((128, 128), np.float32)
    arguments = [a, b, c, i32(128), i32(128), i32(96)]
    if capability == 80:
        report = run(module, meta, (2, 2), arguments, c)
        check(np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max() < 1e-3, "matmul sm_80")
        check(report["counters"]["instr.mma"] > 0, "matmul sm_80: mma.sync executed")
    else:
        try:
            run(module, meta, (2, 2), arguments, c)
            check(False, "wgmma should be refused")
        except RuntimeError as error:
            check("wgmma" in str(error) and "line " in str(error), f"matmul sm_90: {error}")

    if capability == 80:
        heads, n, d = 2, 128, 64
        module, meta = compiled(attention, dict(q="*fp16", k="*fp16", v="*fp16", o="*fp32", scale="fp32", N="i32"),
                                dict(D=d, BM=64, BN=32), capability)
        q, k, v = (random(heads, n, d).astype(np.float16) for _ in range(3))
        o = np.zeros((heads, n, d), np.float32)
        report = run(module, meta, (n // 64, heads), [q, k, v, o, np.float32(d**-0.5 * 1.4426950408889634), i32(n)], o)
        wide = [x.astype(np.float64) for x in (q, k, v)]
        s = np.where(np.tril(np.ones((n, n), bool)), wide[0] @ wide[1].transpose(0, 2, 1) * d**-0.5, -np.inf)
        e = np.exp(s - s.max(2, keepdims=True))
        check(np.abs(o - e / e.sum(2, keepdims=True) @ wide[2]).max() < 5e-3, "attention sm_80")
        check(report["counters"]["instr.mma"] > 0 and report["counters"]["instr.special"] > 0, "attention sm_80: mma and ex2")
