#!/usr/bin/env python3
"""Writes a step for a program of a bundle whose arguments are activations, as
one file for kvcache-run --host: two sequences, the second one of one token."""

import argparse
import json

import numpy as np
import tensor_files
from tensor_files import Tensor


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    with open(options.bundle + "/manifest.json") as file:
        programs = json.load(file)["programs"]
    host = next(p["host"] for p in programs if p["name"] == options.program)
    tokens, generator = options.tokens, np.random.default_rng(5)
    tensors = {}
    for argument in host["arguments"]:
        shape = [tokens if size < 0 else size for size in argument["shape"]]
        rows = generator.standard_normal(shape).astype(np.float32)
        # The upper half of an f32 is a bf16.
        tensors[argument["name"]] = Tensor("BF16", (rows.view(np.uint32) >> 16).astype(np.uint16))
    tensors["query_start"] = Tensor("I32", np.array([0, tokens - 1, tokens], np.int32))
    tensors["lengths"] = Tensor("I32", np.array([tokens - 1, 1], np.int32))
    tensors["page_table"] = Tensor("I32", np.array([[3], [2]], np.int32))
    slots = [3 * 16 + i for i in range(tokens - 1)] + [2 * 16]
    tensors["slot_mapping"] = Tensor("I64", np.array(slots, np.int64))
    tensor_files.write(options.output, tensors)


if __name__ == "__main__":
    main()
