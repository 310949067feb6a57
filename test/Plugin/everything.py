#!/usr/bin/env python3
"""Compares kvcache-opt with a stock mlir-opt that has loaded the plugin."""

import argparse
import pathlib
import re
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__)
for name in ("opt", "mlir-opt", "plugin", "source"):
    parser.add_argument("--" + name, required=True)
options = parser.parse_args()
source = pathlib.Path(options.source)
loaded = [options.mlir_opt, f"--load-dialect-plugin={options.plugin}", f"--load-pass-plugin={options.plugin}"]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, input="")
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


listed = set(re.findall(r"^ +--([\w-]+) +- ", run(options.opt, "--help").partition("Passes:")[2], re.M))
tables = {name for table in source.glob("include/kvcache/*/Passes.td")
          for name in re.findall(r': Pass<"([^"]+)"', table.read_text())}
pipelines = {name for name in listed if re.fullmatch(r"kvcache-\w+-pipeline", name)}
if not tables <= listed or len(pipelines) < 6:
    sys.exit(f"kvcache-opt lists {sorted(listed & tables)} and {sorted(pipelines)}, but there is {sorted(tables)}")
names = sorted(tables | pipelines)
anchored = [f"gpu.module({name})" if name == "convert-arith-f8-to-nvvm" else name for name in names]
for name in anchored:
    run(*loaded, f"--pass-pipeline=builtin.module({name})")

graph = source / "test/Conversion/Inputs/one-layer.mlir"
pipeline = ("--pass-pipeline=builtin.module(kvcache-compile-pipeline{target=sm_80 max-tokens=8 max-sequences=2 "
            f"max-pages-per-sequence=2 num-pages=7 checkpoint={source}/test/Inputs/checkpoints/modelopt_fp8}})")
# But for how long LLVM took.
own, plugin = (re.sub(r"LLVMIRToISATimeInMs = \d+", "", run(*command, "--allow-unregistered-dialect", pipeline, str(graph)))
               for command in ([options.opt], loaded))
if own != plugin or "gpu.binary" not in own:
    sys.exit(f"the compile pipeline gives\n{own[:2000]}\nbut in the plugin\n{plugin[:2000]}")
print(f"{len(names)} passes and pipelines")
