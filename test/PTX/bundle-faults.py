# REQUIRES: kvcache-compile
# RUN: env KVCACHE_PTX_LIB=%ptx_lib %python %s %inputs %t
"""Barriers, fences and waits taken out of a decode kernel that kvcache-compile made,
one at a time: the machine has findings. Fences that order one thing twice go
together. One barrier and one wait may be spare here: only one warp of this shape
writes partial results, and the last wait is for copies that no tile needed."""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
import ptx_machine
from bundle_launch import Bundle

inputs, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
folder = os.path.join(out, "bundle")
subprocess.check_call(
    ["kvcache-compile", os.path.join(inputs, "graphs", "llama", "ops.linalg.dyn.mlir"),
     "--checkpoint=" + os.path.join(inputs, "checkpoints", "compressed_tensors"), "--target=sm_90", "--max-tokens=8",
     "--max-sequences=3", "--max-pages-per-sequence=64", "--num-pages=80", "-o", folder], stdout=subprocess.DEVNULL)
machine = ptx_machine.Machine()
bundle = Bundle(machine, folder, lengths=[700, 300, 37], queries=[1, 1, 1], seed=3)
attention = bundle.launches[-1]["kernel"]
with open(os.path.join(folder, bundle.manifest["targets"][0]["ptx"]["file"])) as f:
    lines = f.read().splitlines()
start = next(n for n, line in enumerate(lines) if f".entry {attention}" in line)
end = next((n for n in range(start + 1, len(lines)) if ".entry" in lines[n]), len(lines))


def places(pattern):
    return [n for n in range(start, end) if re.search(pattern, lines[n])]


def findings(without):
    text = "\n".join("" if n in without else line for n, line in enumerate(lines))
    bundle.module = machine.module(text, "edited")
    kinds = set()
    for options in (dict(), dict(lateCopies=1), dict(seed=1), dict(seed=2, lateCopies=1)):
        kinds |= {f["kind"] for f in bundle.run(**dict(ptx_machine.ALL, maxInstructions=10**6, **options))[1]}
    return kinds


bad = 0


def expect(what, without, kinds):
    """Whether the findings are as expected."""
    found = findings(without)
    right = bool(found & kinds) if kinds else not found
    print("ok  " if right else "miss", what, [lines[n].strip() for n in without][:1], sorted(found))
    return right


def all_but(spare, places, kinds):
    global bad
    missed = sum(not expect(f"line {n + 1}", [n], kinds) for n in places)
    if missed > spare or missed == len(places):
        bad += 1
        print(f"FAIL: {missed} of {len(places)} are not noticed, at most {spare} may be")


fences = places(r"\bfence\.acq_rel\.gpu")
barriers, warp_barriers = places(r"\b(bar|barrier)\.sync\b(?!.*warp)"), places(r"\bbar\.warp\.sync")
waits = places(r"\bcp\.async\.wait_(group|all)")
if not (fences and barriers and waits):
    sys.exit(f"expected fences, barriers and waits, found {len(fences)}, {len(barriers)} and {len(waits)}")
bad += not expect("nothing removed", [], set())
bad += not expect("release fence", fences[:1], {"race"})
bad += not expect("acquire fences", fences[1:], {"race"})
all_but(1, barriers, {"race", "async-race", "uninitialised"})
all_but(0, warp_barriers, {"race"})
all_but(1, waits, {"async-race"})
sys.exit(bad != 0)
