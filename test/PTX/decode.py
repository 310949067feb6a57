# RUN: env KVCACHE_PTX_LIB=%ptx_lib %python %s '%llvm_bin' %t
"""A decode attention kernel computes what float64 computes, and no check finds
anything: with unused slots never written, copies that land early and late, and
warps that interleave."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
import ptx_machine
from decode_case import E4M3, E5M2, SOURCE, Case, Shape, compile_cuda, only_instances

llvm_bin, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
machine = ptx_machine.Machine()
builds = [
    ("sm_90", E4M3, ["nhd64_t32_s3_pad", "nhd64_t16_s4_swz_u4", "nhd16_t32_s3_pad", "hnd64_t32_s3_bulk_u3"], []),
    ("sm_90", E5M2, ["hnd64_t32_s3_pad"], ["-DFMT=E5M2"]),
    ("sm_80", E4M3, ["nhd64_t16_s4_pad"], ["-DHWCVT=0"]),
]
bad = 0
for arch, fmt, names, defines in builds:
    path = os.path.join(out, f"{arch}-{fmt}")
    with open(SOURCE) as f, open(path + ".cu", "w") as g:
        g.write(only_instances(f.read(), names))
    module = machine.module(compile_cuda(llvm_bin, path + ".cu", path + ".ptx", arch, defines), path)
    for name in names:
        shape = Shape(name)
        cases = [
            dict(lengths=[1, 77, shape.page, shape.page + 1], split=512),
            dict(lengths=[530, 15], split=256, kind="codes" if fmt == E4M3 else "normal"),
            dict(lengths=[300], split=512, nan=("v", 37, 5)),
            dict(lengths=[300], split=512, nan=("k", 290, 9))]
        for n, c in enumerate(cases):
            case = Case(page=shape.page, layout=shape.layout, fmt=fmt, seed=100 + n, **c)
            for options in (dict(), dict(lateCopies=1, quantum=17)):
                report = case.run(machine, module, name,
                                  dict(ptx_machine.ALL, maxInstructions=10**7, **options))
                problems = case.problems()
                if problems or report["findings"]:
                    bad += 1
                    print(arch, name, c, options, sorted(problems), report["findings"][:2])
        c = report["counters"]
        # ldmatrix and cp.async of this kernel have no bank conflicts.
        for counter in ("ldmatrix", "cp.async.shared"):
            if c[counter + ".wavefronts"] != c[counter + ".ideal"]:
                bad += 1
                print(arch, name, counter, "has bank conflicts")
        if not c["instr.mma"] or c["cp.async.global.bytes"] < 300 * 2 * 1024:
            bad += 1
            print(arch, name, "counted too little", c)
sys.exit(bad != 0)
