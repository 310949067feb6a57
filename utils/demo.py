#!/usr/bin/env python3
"""Compiles a real graph and checkpoint, runs the model, verifies the numbers.

A Llama that torch exported (two layers, 4 query and 2 KV heads of 64) and a
checkpoint with FP8 KV scales become a bundle. Its kernels run on the PTX
machine, around them the rest of the model on the CPU, for nine steps: prefill,
decode, a second sequence that joins, a page that is crossed. Then a program in
Python that shares no code with the compiler compares every cache byte,
attention output and logit with its own arithmetic and with PyTorch's run.

The last line is JSON; exit code 0 if everything is right.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INPUTS = os.path.join(SOURCE, "test", "Inputs")
GRAPH = os.path.join(INPUTS, "graphs", "llama", "ops.linalg.dyn.mlir")
CHECKPOINT = os.path.join(INPUTS, "checkpoints", "modelopt_fp8")
GOLDEN = os.path.join(INPUTS, "golden", "llama")
STEPS = 9


def show(command, folder):
    """The command as a user would type it in the source folder."""
    text = " ".join(command).replace(SOURCE + os.sep, "").replace(folder + os.sep, "")
    first, last = ("test/Inputs/golden/llama/modelopt_fp8/step%d.safetensors" % n for n in (0, STEPS - 1))
    start, end = text.find(first), text.find(last)
    if start >= 0 and end > start:
        text = text[:start + len(first)] + ",..." + text[end + len(last):]
    return text.replace(sys.executable, "python3")


def run(title, command, folder, quiet=False):
    print(f"== {title}\n$ {show(command, folder)}", flush=True)
    start = time.time()
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if not quiet:
        sys.stdout.write(result.stdout)
    print(f"({time.time() - start:.2f} s)\n", flush=True)
    if result.returncode:
        if quiet:
            sys.stdout.write(result.stdout)
        print(json.dumps({"verified": False, "failed": title}))
        sys.exit(1)
    return result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of the build")
    options = parser.parse_args()
    binaries = os.path.join(os.path.abspath(options.build), "bin")

    with tempfile.TemporaryDirectory() as folder:
        bundle = os.path.join(folder, "llama.kvb")
        outputs = os.path.join(folder, "outputs.safetensors")
        run("Compile the graph with the checkpoint's scales",
            [os.path.join(binaries, "kvcache-compile"), GRAPH, f"--checkpoint={CHECKPOINT}",
             "--target=sm_80,sm_90", "--max-tokens=8", "--max-sequences=2",
             "--max-pages-per-sequence=2", "--num-pages=7", "-o", bundle], folder)
        steps = ",".join(os.path.join(GOLDEN, "modelopt_fp8", f"step{n}.safetensors") for n in range(STEPS))
        report = run("Run the model: kernels on the PTX machine, the rest on the CPU",
                     [os.path.join(binaries, "kvcache-run"), bundle, "--host", "--verify", "--counters",
                      "--json", f"--inputs={os.path.join(GOLDEN, 'weights.safetensors')}",
                      f"--steps={steps}", "--cache-fill=0x7E", f"--outputs={outputs}"], folder, quiet=True)
        counted = json.loads(report.splitlines()[-1])
        table = run("Verify against PyTorch's run and double precision",
                    [sys.executable, "-B", os.path.join(SOURCE, "test", "Integration", "oracle.py"),
                     f"--graph={GRAPH}", f"--checkpoint={CHECKPOINT}",
                     f"--golden={os.path.join(GOLDEN, 'modelopt_fp8')}", f"--outputs={outputs}",
                     "--operands=outputs"], folder)
    verdict = json.loads(table.splitlines()[-1])
    verdict["verified"] = bool(verdict["verified"] and counted["verified"])
    verdict["counts"]["launches"] = counted["launches"]
    verdict["counts"]["warp_instructions"] = counted["warp_instructions"]
    verdict["counts"]["findings"] = counted["finding_count"]
    print(json.dumps(verdict))
    return 0 if verdict["verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
