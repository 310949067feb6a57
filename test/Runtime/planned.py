"""Copies a bundle with the splits of its attention launches chosen on the host: one, for short lengths.

  planned.py BUNDLE COPY [--hide]     --hide leaves out the kernels' structure, by which the reader finds the plan
"""
import json
import os
import shutil
import sys

source, copy, *hide = sys.argv[1:]
shutil.rmtree(copy, ignore_errors=True)
shutil.copytree(source, copy)
path = os.path.join(copy, "manifest.json")
with open(path) as f:
    manifest = json.load(f)
for target in manifest["targets"]:
    for launch in target["launches"]:
        if launch["op"] == "paged_attention":
            assert launch["grid"][2] > 1
            launch["grid"][2] = 1
    for kernel in target["kernels"]:
        if hide:
            kernel["structure"] = {}
with open(path, "w") as f:
    json.dump(manifest, f, indent=2)
