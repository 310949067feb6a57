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
