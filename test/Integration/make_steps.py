#!/usr/bin/env python3
"""Turns a golden run into inputs of kvcache-run: one file for each step, with
the operands of the attention layers under the names of the bundle's buffers
(layer0.query, layer0.key, layer0.value) beside page table, lengths, query
starts and slots. Prints the files as one comma-separated list for --steps."""

import argparse
import os
import re
import sys

import golden
import tensor_files

ROLES = {"q": "query", "k": "key", "v": "value"}
SHARED = ("page_table", "lengths", "query_start", "slot_mapping")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--golden", required=True, help="folder of stepN.safetensors")
    parser.add_argument("--output", required=True, help="folder for the new files")
    options = parser.parse_args()
    os.makedirs(options.output, exist_ok=True)
    paths = []
    for n, step in enumerate(golden.steps(options.golden)):
        inputs = {name: step[name] for name in SHARED}
        for name, tensor in step.items():
            match = re.fullmatch(r"layers\.(\d+)\.([qkv])", name)
            if match:
                inputs[f"layer{match[1]}.{ROLES[match[2]]}"] = tensor
        if len(inputs) == len(SHARED):
            sys.exit(f"step {n} of {options.golden} holds no layers.N.q, k and v")
        paths.append(os.path.join(options.output, f"step{n}.safetensors"))
        tensor_files.write(paths[-1], inputs)
    if not paths:
        sys.exit(f"{options.golden} holds no step0.safetensors")
    print(",".join(paths))


if __name__ == "__main__":
    main()
