#!/usr/bin/env python3
"""Runs a whole exported model on the CPU with the reference lowering of the
kvcache ops, all nine steps of a golden run, and compares logits, hidden states
and cache bytes with PyTorch's."""

import argparse
import json
import os
import sys
import tempfile

import numpy as np

import golden
import tensor_files
from cpu_model import CpuModel

# Legal changes flip up to 600 of the 3,968 codes of a Llama's layer.
MOST_FLIPPED = 600 / 3968
LAYERS, KV_HEADS, HEAD_DIM, PAGES = 2, 2, 64, 7
# Elements of a latent row, which has one head.
LATENT = 512 + 64


def front_end(options, folder):
    """From the exported graph to cache ops with constant scales."""
    checkpoint = f"checkpoint={options.checkpoint}"
    fold = f"--kvcache-fold-checkpoint-scales={checkpoint}"
    if options.scales_of_run:
        stored = tensor_files.read(os.path.join(folder, "cache.safetensors"))
        fold += " scale=" + ",".join(
            f"{i}.{side}={stored[f'layers.{i}.{side}_scale'].data[0]:.9g}"
            for i in range(LAYERS) for side in "kv")
    return ["--kvcache-import",
            f"--kvcache-resolve-cache-types={checkpoint} kv-cache-dtype={options.kv_cache_dtype}",
            f"--kvcache-apply-model-config={checkpoint}", fold, "--kvcache-drop-dynamic-scales"]


def run(options, workdir):
    folder = os.path.join(options.run_folder or options.golden, options.variant)
    model = CpuModel(options.kvcache_opt, options.graph, workdir, front_end(options, folder))
    weights = tensor_files.read(os.path.join(options.golden, "weights.safetensors"))
    extra = tensor_files.read(os.path.join(options.golden, "extra.safetensors"))
    lm_head = extra["lm_head.weight"]
    steps = golden.steps(folder)
    if options.steps:
        steps = steps[:options.steps]

    quantized = options.variant != "bf16_cache"
    own = golden.graph_arguments(options.graph)
    names = model.argument_names()
    assert names[:len(own)] == [None] * len(own), "the graph's arguments come first"
    # What nobody wrote must not be read: the bf16 cache starts as NaN.
    fill = (golden.FILL, np.uint8) if quantized else (0x7FC0, np.uint16)
    caches = {}
    for name in names[len(own):]:
        if name.endswith("_cache"):
            row = (1, LATENT) if name.endswith(".kv_cache") else (KV_HEADS, HEAD_DIM)
            caches[name] = np.full((PAGES, golden.PAGE_SIZE, *row), *fill)

    logits, hidden_differs = golden.LogitsCheck(), 0
    for step in steps:
        arguments = [(step.get(name) or weights[name]).data for name in own]
        for name in names[len(own):]:
            if name in caches:
                arguments.append(caches[name])
            elif name in step:
                arguments.append(step[name].data)
            else:
                arguments.append(extra[name.removeprefix("model.")].data)
        hidden, = model(*arguments)
        hidden_differs += int((hidden != step["hidden"].data).sum())
        logits.add(golden.logits_of(hidden, lm_head), step["logits"].data)

    figures = {"variant": options.variant, "steps": len(steps), **logits.figures(),
               "hidden_differing": hidden_differs}
    passed = logits.passed
    if quantized and not options.steps:
        stored = tensor_files.read(os.path.join(folder, "cache.safetensors"))
        for name, codes in caches.items():
            layer, side = name.removeprefix("layer").removesuffix("_cache").split(".")
            expected = stored[f"layers.{layer}.{side}_cache"].data.reshape(codes.shape)
            # A latent row has the scale of keys.
            scale = stored[f"layers.{layer}.{side[0]}_scale"].data[0]
            count, largest = golden.cache_difference(codes, expected, scale)
            untouched = (expected == golden.FILL).all((2, 3))
            written = int((~untouched).sum()) * codes.shape[2] * codes.shape[3]
            figures[name] = {"differing": count, "largest": largest}
            passed &= count <= MOST_FLIPPED * written and bool((codes[untouched] == golden.FILL).all())
            if options.exact:
                passed &= count == 0
    if options.exact:
        passed &= hidden_differs == 0
    figures["passed"] = bool(passed)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvcache-opt", default="kvcache-opt")
    parser.add_argument("--graph", required=True)
    parser.add_argument("--golden", required=True, help="folder with weights.safetensors")
    parser.add_argument("--run-folder", help="folder of the variant, when it is another")
    parser.add_argument("--variant", required=True)
    parser.add_argument("--steps", type=int, default=0, help="only the first N steps")
    parser.add_argument("--exact", action="store_true",
                        help="hidden states and caches must agree to the last bit")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--scales-of-run", action="store_true",
                        help="override the scales with those that the golden run had")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as workdir:
        figures = run(options, workdir)
    print(json.dumps(figures))
    return 0 if figures["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
