# REQUIRES: nvcc
# RUN: env KVCACHE_PTX_LIB=%ptx_lib %python %s %t
"""PTX that nvcc made runs and agrees with numpy; a transposition without its
barrier is noticed, and its bank conflicts are counted."""

import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(__file__))
import ptx_machine

out = sys.argv[1]
os.makedirs(out, exist_ok=True)
here = os.path.dirname(os.path.abspath(__file__))
machine = ptx_machine.Machine()
rng = np.random.default_rng(1)
i32 = np.int32


def check(condition, what):
    if not condition:
        sys.exit("failed: " + what)


def collatz(v):
    steps, hist = 0, [0] * 4
    while v != 1:
        hist[v & 3] += 1
        v = 3 * v + 1 if v & 1 else v // 2
        steps += 1
        if steps > 500:
            break
    return steps * 1000 + hist[steps & 3] % 1000


for arch in ("sm_80", "sm_90"):
    path = os.path.join(out, f"foreign-{arch}.ptx")
    subprocess.check_call(["nvcc", "-O3", f"-arch={arch}", "-ptx", "-o", path, os.path.join(here, "Inputs", "foreign.cu")])
    with open(path) as f:
        module = machine.module(f.read(), path)
    for k in machine.describe(module).values():
        check(not k["unsupported"], f"{arch} {k}")

    def clean(report, what):
        check(not report["findings"], f"{arch} {what}: {report['findings'][:2]}")

    machine.clear()
    x, total = rng.standard_normal(10007).astype(np.float32), np.zeros(1, np.float32)
    clean(machine.launch(module, "reduce_shfl", (5,), (256,), 0,
                         [machine.buffer(x, "in"), machine.buffer(total, "out", read_only=False), i32(x.size)]),
          "reduce_shfl")
    check(abs(total[0] - x.astype(np.float64).sum()) < 1e-2, "reduce_shfl: sum")

    a = rng.standard_normal((100, 70)).astype(np.float32)
    for name, options in (("transpose", {}), ("transpose", dict(threads=2)), ("transpose_bad", {})):
        machine.clear()
        b = np.zeros((70, 100), np.float32)
        h = machine.output(b, "out")
        report = machine.launch(module, name, (3, 4), (32, 8), 0,
                                [machine.buffer(a, "in"), h, i32(70), i32(100)], **dict(ptx_machine.ALL, **options))
        c = report["counters"]
        if name == "transpose":
            clean(report, name)
            check(np.array_equal(b, a.T), "transpose: values")
            check(c["ld.shared.wavefronts"] == c["ld.shared.ideal"], "transpose: no bank conflicts")
            check(machine.initialised(h, b.nbytes).all(), "transpose: every byte written")
        else:
            check({f["kind"] for f in report["findings"]} >= {"race"}, "transpose_bad: race noticed")
            check(c["ld.shared.wavefronts"] > 8 * c["ld.shared.ideal"], "transpose_bad: conflicts counted")

    machine.clear()
    numbers, steps = rng.integers(1, 5000, 1000).astype(np.int32), np.zeros(1000, np.int32)
    clean(machine.launch(module, "collatz", (4,), (256,), 0,
                         [machine.buffer(numbers, "in"), machine.output(steps, "out"), i32(1000)]), "collatz")
    check(np.array_equal(steps, [collatz(int(v)) for v in numbers]), "collatz: values")

    m, n, k = 128, 192, 160
    a, b = (rng.standard_normal(x).astype(np.float16) for x in ((m, k), (k, n)))
    want = a.astype(np.float64) @ b.astype(np.float64)
    for options in ({}, dict(lateCopies=1), dict(lateCopies=1, seed=7), dict(seed=8)):
        machine.clear()
        c = np.zeros((m, n), np.float32)
        h = machine.output(c, "C")
        report = machine.launch(module, "gemm_async", (n // 64, m // 64), (128,), 0,
                                [machine.buffer(a, "A"), machine.buffer(b, "B"), h, i32(m), i32(n), i32(k)],
                                **dict(ptx_machine.ALL, regions=1, **options))
        clean(report, f"gemm_async {options}")
        check(np.abs(c - want).max() < 1e-3, f"gemm_async {options}: values")
        check(machine.initialised(h, c.nbytes).all(), "gemm_async: every byte written")
    counts = report["counters"]
    blocks = (n // 64) * (m // 64)
    check(counts["instr.mma"] == blocks * 4 * (k // 16) * 8, "gemm_async: mma.sync counted")
    check(counts["cp.async.global.bytes"] == blocks * (k // 32) * 2 * 64 * 32 * 2, "gemm_async: bytes copied")
    check(counts["ldmatrix.wavefronts"] == counts["ldmatrix.ideal"], "gemm_async: no bank conflicts")
    # Two stages of 8 KB by four warps.
    check(counts["in_flight.peak"] == 4096, f"gemm_async: bytes in flight, {counts['in_flight.peak']}")
    loop = max(report["regions"], key=lambda r: r["counters"].get("instr.mma", 0))
    check(loop["counters"]["instr.mma"] >= counts["instr.mma"] // 2 and loop["name"].startswith("$L"),
          "gemm_async: the products are in one region")

    machine.clear()
    a, b = (rng.integers(0, 1 << 64, 300, dtype=np.uint64) for _ in range(2))
    r = np.zeros((300, 2), np.uint64)
    clean(machine.launch(module, "wide_product", (3,), (128,), 0,
                         [machine.buffer(a, "a"), machine.buffer(b, "b"), machine.output(r, "out"), i32(300)]),
          "wide_product")
    for x, y, (low, high) in zip(a.tolist(), b.tolist(), r.tolist()):
        check((x * y + x + (y << 64 | y)) % (1 << 128) == high << 64 | low, "wide_product: values")

    machine.clear()
    numbers, sums = rng.integers(0, 1 << 32, 200, dtype=np.uint32), np.zeros(200, np.uint32)
    clean(machine.launch(module, "digit_sums", (2,), (128,), 0,
                         [machine.buffer(numbers, "in"), machine.output(sums, "out"), i32(200)]), "digit_sums")
    digits = lambda v: sum((k + 1) * int(d) for k, d in enumerate(reversed(str(v))))
    check(np.array_equal(sums, [digits(v) for v in numbers.tolist()]), "digit_sums: values")

# Without its second barrier the next copies overwrite a stage that is read.
path = os.path.join(out, "no-barrier.ptx")
subprocess.check_call(["nvcc", "-O3", "-arch=sm_80", "-ptx", "-DNO_SECOND_BARRIER", "-o", path, os.path.join(here, "Inputs", "foreign.cu")])
with open(path) as f:
    module = machine.module(f.read(), path)
machine.clear()
a, b, c = np.ones((64, 96), np.float16), np.ones((96, 64), np.float16), np.zeros((64, 64), np.float32)
report = machine.launch(module, "gemm_async", (1, 1), (128,), 0,
                        [machine.buffer(a, "A"), machine.buffer(b, "B"), machine.output(c, "C"), i32(64), i32(64), i32(96)])
check("race" in {f["kind"] for f in report["findings"]}, "gemm_async without its second barrier: race noticed")

# What the headers of the toolkit make of one warp: tiles, halves, pipelines, locks.
path = os.path.join(out, "cooperative.ptx")
subprocess.check_call(["nvcc", "-O3", "-std=c++17", "-diag-suppress=20054", "-arch=sm_90", "-ptx", "-o", path, os.path.join(here, "Inputs", "cooperative.cu")])
with open(path) as f:
    module = machine.module(f.read(), path)

machine.clear()
x, sums = rng.integers(-99, 99, 64).astype(np.int32), np.zeros((3, 64), np.int32)
clean(machine.launch(module, "tiles", (1,), (64,), 0, [machine.buffer(x, "in"), machine.buffer(sums, "out", read_only=False)]), "tiles")
thread = np.arange(64)
alike = lambda same: [sum(int(x[k]) for k in thread if k // 32 == t // 32 and same(k, t)) for t in thread]
check(np.array_equal(sums[0], alike(lambda k, t: k // 8 == t // 8)), "tiles: sums of 8 lanes")
check(np.array_equal(sums[1], alike(lambda k, t: k % 3 == t % 3)), "tiles: sums by label")
taken = thread % 5 < 2
check(np.array_equal(sums[2], np.where(taken, taken.reshape(2, 32).sum(1).repeat(32), 0)), "tiles: lanes of a branch")

machine.clear()
a, b = (rng.standard_normal(64).astype(np.float16) for _ in range(2))
a[5], b[9] = np.nan, a[9]
signs = np.zeros(64, np.float16)
clean(machine.launch(module, "signs", (1,), (32,), 0, [machine.buffer(a, "a"), machine.buffer(b, "b"), machine.output(signs, "out")]), "signs")
check(np.array_equal(signs, np.where(a < b, -1, 1)), "signs: values")

steps = 5
x = rng.integers(0, 1000, (steps, 512)).astype(np.int32)
for options in ({}, dict(lateCopies=1), dict(lateCopies=1, seed=3)):
    machine.clear()
    sums = np.zeros(128, np.int32)
    clean(machine.launch(module, "staged", (1,), (128,), 0, [machine.buffer(x, "in"), machine.output(sums, "out"), i32(steps)],
                         **dict(ptx_machine.ALL, **options)), f"staged {options}")
    check(np.array_equal(sums, x[:, np.arange(128) * 7 & 511].sum(0)), f"staged {options}: values")

machine.clear()
lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
clean(machine.launch(module, "locked", (3,), (64,), 0,
                     [machine.buffer(lock, "lock", read_only=False), machine.buffer(count, "count", read_only=False)],
                     **dict(ptx_machine.ALL, maxInstructions=1000000)), "locked")
check(count[0] == 192, "locked: every thread counted once")
