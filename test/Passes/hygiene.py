#!/usr/bin/env python3
"""What every pass of kvcache has in common, tried on the input of all tests.

For each pass that a Passes.td defines:

* it ends without a crash on every piece of every .mlir test, and on a model at
  each stage of the compiler;
* a second run changes nothing;
* a function of foreign ops beside the kvcache ops stays as it was;
* a reproducer of it gives the same output;
* threads make no difference;
* it has statistics, each of which its source counts, and it says something on
  some input: an error, a warning, or a remark with the reason.
"""

import argparse
import pathlib
import re
import subprocess
import sys

DELIMITER = "// -----"
FOREIGN = """
func.func @foreign_probe(%x: tensor<?x4xf32>, %b: memref<?xf32>, %n: index) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %unused = arith.constant 7 : i32
  %d = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%d) : tensor<?x4xf32>
  %y = linalg.exp ins(%x : tensor<?x4xf32>) outs(%e : tensor<?x4xf32>) -> tensor<?x4xf32>
  scf.for %i = %c0 to %n step %c1 {
    %v = memref.load %b[%i] : memref<?xf32>
    %w = arith.addf %v, %v : f32
    memref.store %w, %b[%i] : memref<?xf32>
  }
  %z = "other.op"(%y, %n) {flag = true} : (tensor<?x4xf32>, index) -> tensor<?x4xf32>
  return %z : tensor<?x4xf32>
}
"""
# The same inside a module for the device, with conversions that one pass lowers.
FOREIGN_DEVICE = """
gpu.module @probes {
  gpu.func @foreign_probe(%x: f32, %b: memref<4xf32>) kernel {
    %c1 = arith.constant 1 : index
    %unused = arith.constant 7 : i32
    %h = arith.truncf %x : f32 to f16
    %y = arith.extf %h : f16 to f32
    memref.store %y, %b[%c1] : memref<4xf32>
    gpu.return
  }
  gpu.func @conversions(%x: vector<5xf32>, %b: memref<1xvector<5xf8E5M2>>) kernel {
    %c0 = arith.constant 0 : index
    %y = arith.truncf %x : vector<5xf32> to vector<5xf8E5M2>
    memref.store %y, %b[%c0] : memref<1xvector<5xf8E5M2>>
    gpu.return
  }
}
"""
CAPACITIES = "max-tokens=8 max-sequences=2 max-pages-per-sequence=2 num-pages=7"


def options_of(name, checkpoint, library):
    return {
        "kvcache-import": CAPACITIES,
        "kvcache-fold-checkpoint-scales": f"checkpoint={checkpoint}",
        "kvcache-apply-model-config": f"checkpoint={checkpoint}",
        "kvcache-resolve-cache-types": f"checkpoint={checkpoint}",
        "convert-kvcache-to-nvvm": f"target=sm_90 kernel-library={library}",
    }.get(name, "")


class Tool:
    def __init__(self, build, work):
        self.program, self.work = f"{build}/bin/kvcache-opt", work

    def run(self, text, *arguments):
        """Output and messages; a crash ends the test."""
        done = subprocess.run(
            [self.program, "-", "--allow-unregistered-dialect", *arguments],
            input=text, capture_output=True, text=True)
        if done.returncode not in (0, 1) or "Stack dump" in done.stderr:
            self.work.joinpath("crash.mlir").write_text(text)
            sys.exit(f"crash (exit code {done.returncode}) of kvcache-opt {' '.join(arguments)} "
                     f"on {self.work}/crash.mlir:\n{done.stderr[-3000:]}")
        return done.stdout, done.stderr


def pieces(text):
    return [p.strip() for p in text.split(DELIMITER)]


def join(parts):
    return f"\n{DELIMITER}\n".join(parts) + "\n"


def probe_of(text):
    """The foreign function, to its closing brace."""
    found = re.search(r"^( *)(?:func|gpu)\.func @foreign_probe\b.*?^\1}", text, re.M | re.S)
    return found and re.sub(r"#map\d*", "#map", found.group(0))


LEGACY = """  "vllm.maybe_calc_kv_scales"(%q, %k, %v) {layer_name = "model.layers.0.self_attn.attn", mutated = ["query", "key", "value"],
      operand_names = ["query", "key", "value"]}
    : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>)
"""


def stages(tool, graph, checkpoint, library):
    """A model after each stage, with the foreign function beside it."""
    # A graph of the time when scales were computed at run time.
    text = re.sub(r"(^func\.func @main.*\n)", lambda m: m[0] + LEGACY, graph.read_text(), flags=re.M) + FOREIGN
    result = [tool.run(text)[0]]
    result.append(tool.run(result[0], f"--kvcache-import={CAPACITIES}")[0])
    all_options = f"checkpoint={checkpoint} kernel-library={library} {CAPACITIES}"
    for stage in ("scale", "program", "selection"):
        # The scale pipeline starts from the graph.
        source = result[0] if stage == "scale" else result[-1]
        out, messages = tool.run(source, f"--kvcache-{stage}-pipeline={all_options}")
        if not out:
            sys.exit(f"stage {stage} fails:\n{messages}")
        result.append(out)
    out, messages = tool.run(result[2], "--kvcache-caches-to-arguments")
    if not out:
        sys.exit(f"kvcache-caches-to-arguments fails:\n{messages}")
    return result + [out]


def count_complaints(name, description, sources):
    """What the statistics of a pass lack."""
    declared = re.findall(r'Statistic<"(\w+)"', description)
    if not declared:
        return [f"{name}: has no statistics"]
    return [f"{name}: nothing counts the statistic {statistic}" for statistic in declared
            if not re.search(rf"(\+\+{statistic}\b|\b{statistic}(\+\+| \+=))", sources)]


# It only changes the order, never refuses, and has no choice to explain.
SILENT = {"kvcache-sort-pure-ops"}


def main():
    parser = argparse.ArgumentParser()
    for name in ("source", "build", "work"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    tool = Tool(arguments.build, arguments.work)
    tests = arguments.source / "test"
    checkpoint = tests / "Inputs/checkpoints/modelopt_fp8"
    library = arguments.build / "lib/kvcache/kvcache_kernels.bc"

    passes, failures = [], []
    for table in sorted((arguments.source / "include/kvcache").glob("*/Passes.td")):
        fields = re.split(r'^def (\w+) : Pass<"([^"]+)", "([^"]+)"', table.read_text(), flags=re.M)[1:]
        for definition, name, anchor, description in zip(*(fields[i::4] for i in range(4))):
            passes.append((name, anchor))
            source = next(file.read_text() for file in (arguments.source / "lib" / table.parent.name).glob("*.cpp")
                          if f"GEN_PASS_DEF_{definition.upper()}\n" in file.read_text())
            failures += count_complaints(name, description, source)
    if len(passes) < 13:
        sys.exit(f"expected at least 13 passes in Passes.td files, but found {len(passes)}")

    models = stages(tool, tests / "Conversion/Inputs/one-layer.mlir", checkpoint, library)
    corpus = [FOREIGN, FOREIGN_DEVICE]
    for file in sorted(tests.rglob("*.mlir")):
        if "Inputs" not in file.parts:
            # Inputs of a split-file test are inputs too.
            corpus += pieces(re.sub(r"^//--- .*$", DELIMITER, file.read_text(), flags=re.M))
    # What parses, in canonical form: a second run starts from the same text.
    corpus = [p for p in pieces(tool.run(join(corpus), "--split-input-file")[0]) if p]
    everything = join(models + corpus)

    for name, anchor in passes:
        options = options_of(name, checkpoint, library)
        spelled = f"{name}{{{options}}}" if options else name
        if anchor.endswith("GPUModuleOp"):
            spelled = f"gpu.module({spelled})"
        pipeline = f"--pass-pipeline=builtin.module({spelled})"

        out, messages = tool.run(everything, pipeline, "--split-input-file")
        if not re.search("(error|warning|remark): ", messages) and name not in SILENT:
            failures.append(f"{name}: says nothing on any input")
        once = pieces(out)
        given = pieces(everything)
        if len(once) != len(given):
            failures.append(f"{name}: {len(given)} modules went in, {len(once)} came out")
            continue
        worked = [(a, b) for a, b in zip(given, once) if b]
        twice = pieces(tool.run(join([b for _, b in worked]), pipeline, "--split-input-file")[0])
        for (source, first), second in zip(worked, twice):
            if first != second:
                arguments.work.joinpath("input.mlir").write_text(source)
                failures.append(f"{name}: a second run changes\n{first[:1500]}\nto\n{second[:1500]}")
                break
        for source, first in worked:
            before, after = probe_of(source), probe_of(first)
            if name == "kvcache-sort-pure-ops" and before and after:
                # Its purpose is the order of ops, foreign ones too.
                before, after = sorted(before.splitlines()), sorted(after.splitlines())
            if before != after:
                failures.append(f"{name}: the foreign function\n{before}\nbecame\n{after}")
                break

        alone = [tool.run(join(models), pipeline, "--split-input-file", *flags) for flags in ([], ["--mlir-disable-threading"])]
        if alone[0] != alone[1]:
            failures.append(f"{name}: threads make a difference")

        changed = [source for source, first in worked if source != first]
        if not changed and "verify" not in name:
            failures.append(f"{name}: changes nothing anywhere, so nothing was tried")
            continue
        model = (changed or [source for source, _ in worked])[0]
        file = arguments.work / "reproducer.mlir"
        direct = tool.run(model, pipeline, f"--mlir-generate-reproducer={file}")[0]
        replayed = subprocess.run(
            [tool.program, "--run-reproducer", "--allow-unregistered-dialect", str(file)],
            capture_output=True, text=True)
        if replayed.returncode or replayed.stdout != direct:
            failures.append(f"{name}: the reproducer {file} gives another output: {replayed.stderr[:1000]}")

    for failure in failures:
        print("FAIL", failure, file=sys.stderr)
    if failures:
        sys.exit(1)
    print(f"passes with all properties: {', '.join(name for name, _ in passes)} "
          f"(on {len(models)} stages of models and {len(corpus)} test modules)")


if __name__ == "__main__":
    main()
