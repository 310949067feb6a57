# REQUIRES: kvcache-compile
# RUN: env KVCACHE_PTX_LIB=%ptx_lib %python %s %inputs %t
"""Kernels that kvcache-compile made give the same bits in 24 orders of blocks and
warps, with copies that land early and late, on one and two host threads; no check
finds anything. The blocks of a row merge their parts in the same launch."""

import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(__file__))
import ptx_machine
from bundle_launch import Bundle

inputs, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
SEEDS = 24
bad = 0
for name, options in (("nhd", []), ("hnd", ["--kv-layout=hnd"])):
    folder = os.path.join(out, name)
    subprocess.check_call(
        ["kvcache-compile", os.path.join(inputs, "graphs", "llama", "ops.linalg.dyn.mlir"),
         "--checkpoint=" + os.path.join(inputs, "checkpoints", "compressed_tensors"), "--target=sm_90",
         "--max-tokens=8", "--max-sequences=3", "--max-pages-per-sequence=64", "--num-pages=80", *options, "-o", folder],
        stdout=subprocess.DEVNULL)
    bundle = Bundle(ptx_machine.Machine(), folder, lengths=[700, 37, 5], queries=[2, 1, 1], seed=3)
    if max(x["grid"][2] for x in bundle.launches) < 2:
        sys.exit("expected a grid with several splits, found " + str([x["grid"] for x in bundle.launches]))
    first, findings, counters = bundle.run(**ptx_machine.ALL)
    if findings or not any(np.frombuffer(first["layer0.output"], np.uint8) != 0xEE):
        bad += 1
        print(name, "in order:", findings[:2])
    for seed in range(1, SEEDS + 1):
        written, findings, again = bundle.run(
            **dict(ptx_machine.ALL, seed=seed, lateCopies=seed & 1, threads=1 + (seed % 8 == 0)))
        different = [n for n in first if first[n] != written[n]]
        if different or findings:
            bad += 1
            print(name, "seed", seed, "differs in", different, findings[:1])
        # The order changes nothing that is counted.
        if [c["cp.async.global.bytes"] for c in again] != [c["cp.async.global.bytes"] for c in counters]:
            bad += 1
            print(name, "seed", seed, "counts differ")
sys.exit(bad != 0)
