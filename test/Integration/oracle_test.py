#!/usr/bin/env python3
"""The oracle accepts the golden run's own results and nothing near it.

Outputs as kvcache-run would write them are made from the golden files, and
then spoilt in the ways that a faulty compiler, kernel or bundle would."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

import golden
import tensor_files
from tensor_files import Tensor

HERE = os.path.dirname(os.path.abspath(__file__))
INPUTS = os.path.join(HERE, "..", "Inputs")
RUN = os.path.join(INPUTS, "golden", "llama", "modelopt_fp8")
GRAPH = os.path.join(INPUTS, "graphs", "llama", "ops.linalg.dyn.mlir")
CHECKPOINT = os.path.join(INPUTS, "checkpoints", "modelopt_fp8")


def golden_outputs(capacity=8):
    """What a right run writes, activations padded to the capacity."""
    outputs = {}
    for n, step in enumerate(golden.steps(RUN)):
        for i in range(2):
            rows = step[f"layers.{i}.attn_out"].data
            padded = np.zeros((capacity, *rows.shape[1:]), rows.dtype)
            padded[:len(rows)] = rows
            outputs[f"step{n}.layer{i}.output"] = Tensor("BF16", padded)
            for role in ("query", "key", "value"):
                outputs[f"step{n}.layer{i}.{role}"] = step[f"layers.{i}.{role[0]}"]
        outputs[f"step{n}.result0"] = step["hidden"]
    cache = tensor_files.read(os.path.join(RUN, "cache.safetensors"))
    for i in range(2):
        for side in "kv":
            outputs[f"layer{i}.{side}_cache"] = Tensor(
                "F8_E4M3", cache[f"layers.{i}.{side}_cache"].data.copy())
    return outputs


class Cases:
    def __init__(self, workdir):
        self.workdir = workdir
        self.failures = 0

    def oracle(self, outputs, checkpoint=CHECKPOINT, graph=GRAPH, arguments=()):
        path = os.path.join(self.workdir, "outputs.safetensors")
        tensor_files.write(path, outputs)
        result = subprocess.run(
            [sys.executable, os.path.join(HERE, "oracle.py"), "--graph", graph, "--checkpoint",
             checkpoint, "--golden", RUN, "--outputs", path, *arguments],
            capture_output=True, text=True)
        return result, json.loads(result.stdout.strip().splitlines()[-1])

    def expect(self, what, code, text, outputs, **keywords):
        result, verdict = self.oracle(outputs, **keywords)
        output = result.stdout + result.stderr
        right = (result.returncode == code and verdict["verified"] == (code == 0)
                 and text in output)
        print(("ok    " if right else "FAILED"), what)
        if not right:
            print(output)
            self.failures += 1

    def checkpoint(self, change):
        """A copy of the checkpoint with `change` applied to its tensors."""
        folder = tempfile.mkdtemp(dir=self.workdir)
        for name in os.listdir(CHECKPOINT):
            shutil.copy(os.path.join(CHECKPOINT, name), folder)
        path = os.path.join(folder, "model.safetensors")
        tensors = tensor_files.read(path)
        change(tensors)
        os.chmod(path, 0o644)
        tensor_files.write(path, tensors)
        return folder


def scaled(key, factor):
    def change(tensors):
        tensors[key] = Tensor("F32", tensors[key].data * np.float32(factor))
    return change


def renamed(tensors):
    """Plain fp8 names instead of ModelOpt's."""
    for i in range(2):
        for side in "kv":
            attention = f"model.layers.{i}.self_attn"
            tensors[f"{attention}.{side}_scale"] = tensors.pop(
                f"{attention}.{side}_proj.{side}_scale")


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    right = golden_outputs()
    with tempfile.TemporaryDirectory() as workdir:
        cases = Cases(workdir)
        cases.expect("golden results are right", 0, '"cache_bytes_differing": 0', right)
        cases.expect("operands and logits of a free run are right", 0, '"argmax": "31/31"', right,
                     arguments=["--operands=outputs"])
        cases.expect("plain names mean the same scales", 0, "0.0246", right,
                     checkpoint=cases.checkpoint(renamed))

        for side in "kv":
            key = f"model.layers.1.self_attn.{side}_proj.{side}_scale"
            cases.expect(f"a {side} scale 5 % larger in the checkpoint", 1,
                         f"layer1.{side}_cache", right,
                         checkpoint=cases.checkpoint(scaled(key, 1.05)))
        one_percent = cases.checkpoint(scaled("model.layers.0.self_attn.v_proj.v_scale", 1.01))
        cases.expect("a v scale 1 % larger in the checkpoint", 1, "layer0.output is wrong", right,
                     checkpoint=one_percent)

        swapped = {name.replace("layer0", "#").replace("layer1", "layer0").replace("#", "layer1"): t
                   for name, t in right.items()}
        cases.expect("layers swapped", 1, "layer0.k_cache", swapped)
        sides = {name.replace("k_cache", "#").replace("v_cache", "k_cache").replace("#", "v_cache"): t
                 for name, t in right.items()}
        cases.expect("keys and values swapped", 1, "layer0.v_cache", sides)

        def spoil(name, change):
            outputs = dict(right)
            data = outputs[name].data.copy()
            change(data)
            outputs[name] = Tensor(outputs[name].dtype, data)
            return outputs

        def flip(page, token):
            def change(data):
                data[page, token, 1, 63] ^= 1
            return change

        # Page 5 is sequence A's first, page 4 nobody's.
        cases.expect("one bit of a written code", 1, "page 5, token 3, head 1, dim 63",
                     spoil("layer1.v_cache", flip(5, 3)))
        cases.expect("one bit of a page that nobody owns", 1, "page 4, token 0",
                     spoil("layer0.k_cache", flip(4, 0)))

        def nudge(data):
            # The largest element of a row, four bf16 steps away.
            values = tensor_files.values(Tensor("BF16", data))[0, 2]
            data[0, 2, np.abs(values).argmax()] += 4
        cases.expect("one attention output four steps off", 1, "step 8: layer1.output is wrong",
                     spoil("step8.layer1.output", nudge))

        def poison(data):
            data[0, 0, 0] = 0x7FC0
        cases.expect("a NaN in an attention output", 1, "step 4: layer0.output is wrong",
                     spoil("step4.layer0.output", poison))

        def last_token_unseen(data):
            data[:] = right["step1.layer0.output"].data
        cases.expect("the output of the step before", 1, "step 2: layer0.output is wrong",
                     spoil("step2.layer0.output", last_token_unseen))

        def other_hidden(data):
            data[:] = np.roll(data, 1)
        cases.expect("hidden states of a free run rolled", 1, "logits",
                     spoil("step0.result0", other_hidden), arguments=["--operands=outputs"])

        missing = {name: t for name, t in right.items() if name != "step5.layer0.output"}
        cases.expect("a missing step", 1, "step 5: layer0.output is missing", missing)
        missing = {name: t for name, t in right.items() if name != "layer1.k_cache"}
        cases.expect("a missing cache", 1, "layer1.k_cache is missing", missing)

        def no_config(tensors):
            tensors.clear()
        empty = cases.checkpoint(no_config)
        cases.expect("no scales in the checkpoint: all are 1", 1, "layer0.k_cache", right,
                     checkpoint=empty)
        os.remove(os.path.join(empty, "config.json"))
        cases.expect("a checkpoint without config.json", 2, "no config.json", right,
                     checkpoint=empty)
    print(f"{cases.failures} failures")
    return 1 if cases.failures else 0


if __name__ == "__main__":
    sys.exit(main())
