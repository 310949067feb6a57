"""Compiles the exported models in every form and compares the bundles.

Whatever dialect a graph is in, its caches, scales, kernels and launches must be
those of the linalg form, byte for byte: that one is judged by the oracle. Only
the code around the segments differs, and an argument that a graph writes in
place is no result of it. Programs of torch.export go through kvcache-translate
first, and name their arguments themselves.
"""

import json
import pathlib
import subprocess
import sys

FORMS = {
    "llama": ["fun.torch.generic", "mut.torch.generic", "customcall.stablehlo.generic"],
    "llama_legacy": ["fun.torch.generic"],
    "llama_explicit": ["mut.torch.generic", "customcall.stablehlo.generic"],
    "hybrid": ["mut.torch.generic"],
}
ARCHIVES = {
    "llama": ["llama.dyn.json", "llama.dyn.v2.pt2"],
    "llama_legacy": ["llama_legacy.dyn.v1.json"],
    "llama_explicit": ["llama_explicit.dyn.v2.json"],
}


def compile_graph(graph, bundle, checkpoint):
    subprocess.run(["kvcache-compile", str(graph), f"--checkpoint={checkpoint}", "--kv-cache-dtype=fp8", "--ptxas=none", "--quiet", "-o", str(bundle)], check=True, stderr=subprocess.DEVNULL)
    manifest = json.loads((bundle / "manifest.json").read_text())
    hosts = [program.pop("host") for program in manifest["programs"]]
    code = {path.name: path.read_bytes() for path in (bundle / "code").iterdir()}
    return manifest, code, hosts


def signature(hosts, names):
    return [[{key: value for key, value in argument.items() if names or key != "name"} for argument in host["arguments"]] for host in hosts]


def main():
    inputs, work = map(pathlib.Path, sys.argv[1:])
    work.mkdir(parents=True, exist_ok=True)
    checkpoint = inputs / "checkpoints" / "modelopt_fp8"
    failures = 0
    for model, forms in FORMS.items():
        folder = inputs / "graphs" / model
        manifest, code, hosts = compile_graph(folder / "ops.linalg.dyn.mlir", work / f"{model}.linalg", checkpoint)
        assert code and manifest["programs"]
        graphs = {form: folder / f"{form}.dyn.mlir" for form in forms}
        for archive in ARCHIVES.get(model, []):
            graphs[archive] = work / f"{archive}.mlir"
            subprocess.run(["kvcache-translate", "--pt2-to-mlir", str(inputs / "pt2" / archive), "-o", str(graphs[archive])], check=True)
        for form, graph in graphs.items():
            other, other_code, other_hosts = compile_graph(graph, work / f"{model}.{form}", checkpoint)
            same = manifest == other and code == other_code
            arguments = signature(hosts, form in forms) == signature(other_hosts, form in forms)
            segments = sum(len(program["segments"]) for program in other["programs"])
            print(f"{'ok' if same and arguments else 'FAILED'} {model} {form}: {segments} segments, {len(other_code)} files of code")
            failures += not (same and arguments)
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
