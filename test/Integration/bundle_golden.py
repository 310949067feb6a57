#!/usr/bin/env python3
"""Bundles, from the original graph to the outputs of the PTX machine, judged by
the oracle.

Each bundle runs the nine steps of a golden run, once with PyTorch's stored
operands and once as the whole model. Then bundles and checkpoints that do not
belong together must be noticed."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

import tensor_files

HERE = os.path.dirname(os.path.abspath(__file__))
INPUTS = os.path.join(HERE, "..", "Inputs")
CAPACITIES = ["--max-tokens=8", "--max-sequences=2", "--max-pages-per-sequence=2", "--num-pages=7"]


def inputs(*parts):
    return os.path.join(INPUTS, *parts)


def graph(name="llama"):
    return inputs("graphs", name, "ops.linalg.dyn.mlir")


class Suite:
    def __init__(self, options, workdir):
        self.options, self.workdir = options, workdir
        self.failures = 0

    def path(self, name):
        return os.path.join(self.workdir, name)

    def report(self, name, right, output):
        print(("ok    " if right else "FAILED"), name)
        if not right:
            print(output)
            self.failures += 1

    def call(self, *command):
        result = subprocess.run(command, capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr

    def compile(self, bundle, checkpoint, *arguments, source=None):
        code, output = self.call(self.options.kvcache_compile, source or graph(),
                                 f"--checkpoint={checkpoint}", "--target=sm_80,sm_90", *CAPACITIES,
                                 "-o", self.path(bundle), *arguments)
        if code:
            self.report(f"compile {bundle}", False, output)
        return self.path(bundle)

    def steps(self, variant):
        folder = self.path("steps-" + variant)
        code, output = self.call(sys.executable, os.path.join(HERE, "make_steps.py"), "--golden",
                                 inputs("golden", "llama", variant), "--output", folder)
        assert code == 0, output
        return output.strip()

    def run(self, bundle, variant, target, host=False):
        """(exit code, text, outputs) of one run of kvcache-run."""
        outputs = self.path("outputs.safetensors")
        if os.path.exists(outputs):
            os.remove(outputs)
        arguments = [f"--steps={self.steps(variant)}"]
        if host:
            folder = inputs("golden", "llama", variant)
            arguments = ["--host", f"--inputs={inputs('golden', 'llama', 'weights.safetensors')}",
                         "--steps=" + ",".join(os.path.join(folder, f"step{n}.safetensors")
                                               for n in range(9))]
        code, text = self.call(self.options.kvcache_run, bundle, f"--target={target}", "--quiet",
                               "--cache-fill=0x7E", f"--outputs={outputs}", *arguments)
        return code, text, outputs

    def oracle(self, outputs, checkpoint, variant, *arguments):
        code, text = self.call(sys.executable, os.path.join(HERE, "oracle.py"), "--graph", graph(),
                               "--checkpoint", checkpoint, "--golden",
                               inputs("golden", "llama", variant), "--outputs", outputs, *arguments)
        return code, text

    def judge(self, name, bundle, checkpoint, variant, target, *arguments, host=False, right=True,
              says=""):
        code, text, outputs = self.run(bundle, variant, target, host)
        if code == 0:
            more = ["--operands=outputs"] if host else []
            code, verdict = self.oracle(outputs, checkpoint, variant, *more, *arguments)
            text += verdict
            verified = json.loads(verdict.strip().splitlines()[-1])["verified"]
            self.report(name, (code == 0) == right == verified and code in (0, 1) and says in text, text)
        else:
            self.report(name, False, text)

    def changed_checkpoint(self, source, change):
        folder = tempfile.mkdtemp(dir=self.workdir)
        for name in os.listdir(source):
            shutil.copy(os.path.join(source, name), folder)
        path = os.path.join(folder, "model.safetensors")
        tensors = tensor_files.read(path)
        change(tensors)
        os.chmod(path, 0o644)
        tensor_files.write(path, tensors)
        return folder

    def run_all(self):
        modelopt = inputs("checkpoints", "modelopt_fp8")
        plain = inputs("checkpoints", "no_scales")
        bundles = {"nhd": self.compile("nhd", modelopt)}
        for layout in ("hnd", "packed", "strides:2592,160,80"):
            bundles[layout] = self.compile(layout, modelopt, f"--kv-layout={layout}")
        for layout, bundle in bundles.items():
            for target in () if layout.startswith("strides") else ("sm_80", "sm_90"):
                self.judge(f"{layout}, {target}, stored operands", bundle, modelopt, "modelopt_fp8",
                           target)
            self.judge(f"{layout}, whole model", bundle, modelopt, "modelopt_fp8", "sm_90", host=True)
        unscaled = self.compile("unscaled", plain, "--kv-cache-dtype=fp8")
        for host in (False, True):
            self.judge(f"no scales, {'whole model' if host else 'stored operands'}", unscaled, plain,
                       "no_scales", "sm_90", "--kv-cache-dtype=fp8", host=host)
        legacy = self.compile("legacy", modelopt, source=graph("llama_legacy"))
        self.judge("graph with run-time scales, whole model", legacy, modelopt, "modelopt_fp8", "sm_90",
                   host=True)

        # What does not belong together.
        def larger(tensors):
            key = "model.layers.1.self_attn.v_proj.v_scale"
            tensors[key] = tensor_files.Tensor("F32", tensors[key].data * np.float32(1.05))
        self.judge("a scale of the checkpoint has changed since", bundles["nhd"],
                   self.changed_checkpoint(modelopt, larger), "modelopt_fp8", "sm_90", right=False,
                   says="layer1.v_cache")

        def swapped(tensors):
            for side in "kv":
                a, b = (f"model.layers.{i}.self_attn.{side}_proj.{side}_scale" for i in (0, 1))
                tensors[a], tensors[b] = tensors[b], tensors[a]
        other = self.compile("swapped", self.changed_checkpoint(modelopt, swapped))
        for host in (False, True):
            self.judge(f"layers swapped, {'whole model' if host else 'stored operands'}", other,
                       modelopt, "modelopt_fp8", "sm_90", host=host, right=False, says="layer0.k_cache")

        stale = self.path("stale")
        shutil.copytree(bundles["nhd"], stale)
        shutil.copy(os.path.join(unscaled, "manifest.json"), stale)
        code, text, outputs = self.run(stale, "modelopt_fp8", "sm_90")
        if code == 0:
            code, text = self.oracle(outputs, modelopt, "modelopt_fp8")
        self.report("a manifest of another checkpoint", code == 1, text)

        corrupt = self.path("corrupt")
        shutil.copytree(bundles["nhd"], corrupt)
        with open(os.path.join(corrupt, "code", "sm_90.ptx"), "r+") as file:
            text = file.read()
            assert "fma.rn.f32" in text
            file.seek(text.index("fma.rn.f32"))
            file.write("fma.rz.f32")
        code, text, _ = self.run(corrupt, "modelopt_fp8", "sm_90")
        self.report("corrupted code", code == 1 and "sm_90.ptx" in text, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvcache-compile", default="kvcache-compile")
    parser.add_argument("--kvcache-run", default="kvcache-run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as workdir:
        suite = Suite(options, workdir)
        suite.run_all()
    print(f"{suite.failures} failures")
    return 1 if suite.failures else 0


if __name__ == "__main__":
    sys.exit(main())
