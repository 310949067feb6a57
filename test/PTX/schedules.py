# RUN: env KVCACHE_PTX_LIB=%ptx_lib %python %s '%llvm_bin' %t
"""The decode kernel gives the same bits in 20 orders of blocks and warps. A kernel
without a barrier that it needs does not: its results depend on the order."""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(__file__))
import ptx_machine
from decode_case import SOURCE, Case, Shape, compile_cuda, edit, only_instances

llvm_bin, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
NAME = "nhd64_t32_s3_pad"
with open(SOURCE) as f:
    original = only_instances(f.read(), [NAME])
FAULT = ("first cta_sync of the merge removed", "cta_sync(); const int HP", "const int HP")
machine = ptx_machine.Machine()


def build(what, source):
    path = os.path.join(out, what)
    with open(path + ".cu", "w") as g:
        g.write(source)
    return machine.module(compile_cuda(llvm_bin, path + ".cu", path + ".ptx"), what)


def results(module, seeds, **options):
    found, kinds = set(), set()
    for seed in seeds:
        case = Case([300, 65], 64, "nhd", seed=5, split=256)
        report = case.run(machine, module, NAME, dict(ptx_machine.ALL, seed=seed, lateCopies=seed & 1, **options))
        kinds |= {f["kind"] for f in report["findings"]}
        problems = case.problems()
        found.add((case.o.tobytes(), case.ml.tobytes(), tuple(sorted(problems))))
    return found, kinds


right, kinds = results(build("right", original), range(21))
if len(right) != 1 or kinds or next(iter(right))[2]:
    sys.exit(f"the decode kernel: {len(right)} different results, findings {kinds}")
wrong, kinds = results(build("wrong", edit(original, *FAULT[1:])), range(8))
if len(wrong) < 2 or "race" not in kinds:
    sys.exit(f"{FAULT[0]}: expected results that depend on the order and a race, found {len(wrong)} and {kinds}")
