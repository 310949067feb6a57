# RUN: env KVCACHE_PTX_LIB=%ptx_lib %python %s '%llvm_bin' %t
"""Each bug planted in the decode kernel is noticed by what should notice it. Many
give right results: only the checks see them."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(__file__))
import ptx_machine
from decode_case import SOURCE, Case, Shape, compile_cuda, edit, only_instances

NHD, HND, NHD16, BULK = "nhd64_t32_s3_pad", "hnd64_t32_s3_pad", "nhd16_t32_s3_pad", "hnd64_t32_s3_bulk_u3"
# what, instance, [(code, replacement, times)], what has to notice it: kinds of findings,
# "wrong" (outputs) or "conflicts" (counters)
BUGS = [
    ("none", NHD, [], set()),
    ("main loop: warp_sync removed", NHD,
     [("cp_wait(ST - 2); warp_sync(); if (left > 0)", "cp_wait(ST - 2); if (left > 0)")], {"race"}),
    ("main loop: waits for one group too few", NHD,
     [("cp_wait(ST - 2); warp_sync(); if (left > 0)", "cp_wait(ST - 1); warp_sync(); if (left > 0)")], {"async-race"}),
    ("first cta_sync of the merge removed", NHD, [("cta_sync(); const int HP", "const int HP")], {"race"}),
    ("second cta_sync of the merge removed", NHD, [("cta_sync(); u32 d = tid_x", "u32 d = tid_x")], {"race"}),
    ("tail: wait(0) missing", NHD,
     [("else cp_wait(0); warp_sync(); tile_step", "; warp_sync(); tile_step")], {"async-race"}),
    ("page id not clamped", NHD16, [("S.tile > S.page && i > last ? last : i", "i")], {"uninitialised"}),
    ("page prefetch one too far", NHD, [("if (left > 1) pid", "if (left > -2) pid")], {"out-of-bounds"}),
    ("tail mask off by one", NHD, [(">= valid) s[mt][i]", "> valid) s[mt][i]")], {"uninitialised"}),
    ("V not masked in the tail", NHD,
     [("if (masked) { x0 &= k0; x1 &= k1; } decode4(S, x0, 1", "decode4(S, x0, 1")], {"uninitialised"}),
    ("last V row not copied", NHD, [("cp16(d + VO, go", "if (i + 1 < R) cp16(d + VO, go")], {"uninitialised"}),
    ("rows of 128 B without swizzle", NHD, [(" ? 128 : 144", " ? 128 : 128", 5)], {"conflicts"}),
    ("ring fill into the stage being read", NHD,
     [("fill(S, cp, ring + wr, pid, wbar)", "fill(S, cp, ring + rd, pid, wbar)")], {"async-race", "race"}),
    ("sync after writing the ones removed", NHD,
     [("0x3c003c00u); warp_sync();", "0x3c003c00u);")], {"race"}),
    ("sync after reading the ones removed", NHD, [("warp_sync(); int pid = 0;", "int pid = 0;")], {"race"}),
    ("shfl under a lane condition", NHD,
     [("m = fmx(m, shfl_xor(m, 4));", "if ((tid_x() & 7) < 5) m = fmx(m, shfl_xor(m, 4));")], {"sync"}),
    ("part_ml not written", NHD, [("if (d == 0) { a.part_ml", "if (d == 128) { a.part_ml")], {"wrong"}),
    ("part_o one row too far", NHD,
     [("a.part_o[(orow + h) * HD + d]", "a.part_o[(orow + h + 1) * HD + d]")], {"out-of-bounds"}),
    ("head stride in 32-bit words", HND,
     [("(u64)kvh * (u32)S.head_stride", "(u64)kvh * (u32)S.head_stride * 8")], {"out-of-bounds"}),
    ("bulk: main loop does not wait", BULK, [("mbar_wait(rbar, par & 1)", "(void)rbar")], {"async-race"}),
    ("bulk: mbarriers not initialised", BULK, [("mbar_init(bars + 8 * s)", "(void)bars")], {"uninitialised"}),
    ("bulk: too few bytes expected", BULK, [("mbar_expect(bar, S.tile * 256)", "mbar_expect(bar, S.tile * 128)")],
     {"async-race"}),
    ("cp.async 8 bytes off", NHD, [("lchk * 16 + 2048)", "lchk * 16 + 2056)")], {"misaligned"}),
]

llvm_bin, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
with open(SOURCE) as f:
    original = f.read()


def build(job):
    number, (what, name, edits, _) = job
    source = only_instances(original, [name])
    for change in edits:
        source = edit(source, *change)
    path = os.path.join(out, f"bug{number}")
    with open(path + ".cu", "w") as g:
        g.write(source)
    return compile_cuda(llvm_bin, path + ".cu", path + ".ptx")


with ThreadPoolExecutor(2) as pool:
    texts = list(pool.map(build, enumerate(BUGS)))

machine = ptx_machine.Machine()
failed = 0
for text, (what, name, _, expected) in zip(texts, BUGS):
    module = machine.module(text, what)
    shape = Shape(name)
    seen, first, conflicts = set(), {}, 0
    # The last case has a table that ends with the last page of the last sequence.
    for late, lengths, split, spare in ((0, [700, 77], 512, 2), (1, [700, 77], 512, 2), (0, [512, 700], 1024, 0)):
        case = Case(lengths, shape.page, shape.layout, seed=3, split=split, spare=spare)
        options = dict(ptx_machine.ALL, lateCopies=late, maxInstructions=10**6)
        report = case.run(machine, module, name, options)
        for f in report["findings"]:
            seen.add(f["kind"])
            first.setdefault(f["kind"], f)
        if case.problems():
            seen.add("wrong")
        c = report["counters"]
        conflicts = max(conflicts, c["ldmatrix.wavefronts"] / max(1, c["ldmatrix.ideal"]))
    if conflicts > 1.01:
        seen.add("conflicts")
    ok = bool(seen & expected) if expected else not seen
    # A finding says where it is.
    lines = text.splitlines()
    ok &= all(f["line"] > 0 and lines[f["line"] - 1].strip() == f["text"] for f in first.values())
    print(f"{'ok  ' if ok else 'FAIL'} {what:42s} {sorted(seen)}")
    for f in first.values():
        print(f"        {f['kind']}: line {f['line']} {f['text'][:60]} | block {f['block']} "
              f"thread {f['thread']} {f['message'][:150]}")
    failed += not ok
sys.exit(failed != 0)
