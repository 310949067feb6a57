"""A whole MLA model as a bundle: nine golden steps on the PTX machine, verified in
double precision, and its logits and cache compared with PyTorch's."""

import os
import subprocess
import sys

import golden
import tensor_files
from reference_golden import MOST_FLIPPED

FOLDER, INPUTS = sys.argv[1:]
GOLDEN = os.path.join(INPUTS, "golden", "mla")
RUN = os.path.join(GOLDEN, "modelopt_fp8")
GRAPH = os.path.join(INPUTS, "graphs", "mla", "ops.linalg.dyn.mlir")
CAPACITIES = ["--max-tokens=8", "--max-sequences=2", "--max-pages-per-sequence=2", "--num-pages=7"]


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    bundle, weights, outputs = (os.path.join(FOLDER, name) for name in ("m.kvb", "w.safetensors", "o.safetensors"))
    checkpoint = os.path.join(INPUTS, "checkpoints", "mla_deepseek_k_only")
    call("kvcache-compile", GRAPH, f"--checkpoint={checkpoint}", "--target=sm_80,sm_90", *CAPACITIES, "--ptxas=none", "--quiet",
         "-o", bundle)
    # The weight that import made an argument has the checkpoint's name.
    tensors, extra = (tensor_files.read(os.path.join(GOLDEN, name)) for name in ("weights.safetensors", "extra.safetensors"))
    name = "layers.0.self_attn.kv_b_proj.weight"
    tensors["model." + name] = extra[name]
    tensor_files.write(weights, tensors)
    steps = golden.steps(RUN)
    files = ",".join(os.path.join(RUN, f"step{n}.safetensors") for n in range(len(steps)))
    stored = tensor_files.read(os.path.join(RUN, "cache.safetensors"))
    codes = stored["layers.0.kv_cache"].data
    for target in ("sm_80", "sm_90"):
        text = call("kvcache-run", bundle, f"--target={target}", "--host", f"--inputs={weights}", f"--steps={files}", "--verify", "--quiet",
                    f"--cache-fill={golden.FILL:#x}", f"--outputs={outputs}")
        if "\nverified: 9 steps" not in text:
            sys.exit(text)
        found, logits = tensor_files.read(outputs), golden.LogitsCheck()
        for n, step in enumerate(steps):
            logits.add(golden.logits_of(found[f"step{n}.result0"].data, extra["lm_head.weight"]), step["logits"].data)
        cache = found["layer0.kv_cache"].data.reshape(codes.shape)
        differing, _ = golden.cache_difference(cache, codes, stored["layers.0.k_scale"].data[0])
        untouched = (codes == golden.FILL).all(-1)
        right = logits.passed and differing <= MOST_FLIPPED * (~untouched).sum() * codes.shape[-1] and \
            (cache[untouched] == golden.FILL).all()
        print("ok" if right else "FAILED", target, logits.figures(), f"{differing} codes differ")
        if not right:
            sys.exit(1)


if __name__ == "__main__":
    main()
