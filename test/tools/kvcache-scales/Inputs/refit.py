"""Copies a checkpoint, its F32 k, v and q scales multiplied by a factor.

usage: refit.py FROM TO FACTOR
"""

import json
import os
import shutil
import struct
import sys

source, target, factor = sys.argv[1], sys.argv[2], float(sys.argv[3])
os.makedirs(target)
for name in os.listdir(source):
    shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
with open(os.path.join(target, "model.safetensors"), "r+b") as file:
    length = struct.unpack("<Q", file.read(8))[0]
    header = json.loads(file.read(length))
    changed = 0
    for name, tensor in header.items():
        if not name.endswith((".k_scale", ".v_scale", "_proj.output_scale")):
            continue
        assert tensor["dtype"] == "F32", name
        begin, end = tensor["data_offsets"]
        for at in range(8 + length + begin, 8 + length + end, 4):
            file.seek(at)
            value = struct.unpack("<f", file.read(4))[0]
            file.seek(at)
            file.write(struct.pack("<f", value * factor))
        changed += 1
assert changed, "no scale was changed"
