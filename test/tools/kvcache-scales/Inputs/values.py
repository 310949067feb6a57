"""Compares `kvcache-scales show --format=json` with what the safetensors and
ml_dtypes packages read from the same files.

usage: values.py TOOL CHECKPOINTS SCRATCH
"""

import json
import os
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

tool, checkpoints, scratch = sys.argv[1:]


def show(folder, *options, code=0):
    result = subprocess.run([tool, "show", folder, "--format=json", *options], capture_output=True, text=True)
    if result.returncode != code:
        sys.exit(f"{folder}: exit code {result.returncode}, expected {code}\n{result.stdout}{result.stderr}")
    return json.loads(result.stdout)


def bits(values):
    """Of f32, as the tool prints them."""
    return [f"0x{int(value):08X}" for value in np.atleast_1d(np.asarray(values, np.float32)).view(np.uint32)]


def stored(file, key):
    """A tensor in f32, by the packages alone."""
    with safe_open(file, "np") as opened:
        return opened.get_tensor(key).astype(np.float32).ravel()


def expect(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: found {found}, expected {expected}")


seen = 0
for name in sorted(os.listdir(checkpoints)):
    folder = os.path.join(checkpoints, name)
    if not os.path.isdir(folder):
        continue
    report = show(folder, "--kv-cache-dtype=fp8", "--scale-policy=compatible")
    for layer in report["layers"]:
        for role, scale in layer["scales"].items():
            what = f"{name}, layer {layer['index']}, {role}"
            found = scale["bits"] if isinstance(scale["bits"], list) else [scale["bits"]]
            if "key" not in scale:
                expect((scale["provenance"], found), ("default", bits(1.0)), what)
                continue
            value = stored(scale["file"], scale["key"])
            if role == "q" and len(value) > 1:
                value = value.reshape(len(found), -1).max(axis=1)
            expect(found, bits(value), what)
            seen += 1
    # The tool's parse of every header agrees with the package's.
    for layer in report["layers"]:
        for scale in layer["scales"].values():
            if "key" in scale:
                with safe_open(scale["file"], "np") as opened:
                    part = opened.get_slice(scale["key"])
                    expect((scale["dtype"], scale["shape"]), (part.get_dtype(), part.get_shape()), scale["key"])
if seen < 60:
    sys.exit(f"only {seen} scales were compared")

# Element types and rounding: awkward values in each, and rounded as asked.
shutil.rmtree(scratch, ignore_errors=True)
os.makedirs(scratch)
awkward = [0.0123, 1 / 3, 3e-38, 65504.0, 1.00390625, 0.03454589844, 2.0**-24, 6.1e-5]
types = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64}
prefix = "model.layers.0.self_attn"
for dtype, numpy_type in types.items():
    for value in awkward:
        tensor = np.asarray([value]).astype(numpy_type)
        expected = tensor.astype(np.float32)
        if not (np.isfinite(expected) & (expected > 0)).all():
            continue
        file = os.path.join(scratch, "model.safetensors")
        save_file({f"{prefix}.k_scale": tensor, f"{prefix}.v_scale": tensor}, file)
        for option, rounding in (("", np.float32), ("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
            with np.errstate(over="ignore"):
                rounded = expected.astype(rounding).astype(np.float32)
            good = bool((np.isfinite(rounded) & (rounded > 0)).all())
            options = ["--kv-cache-dtype=fp8"] + ([f"--round-scales-to={option}"] if option else [])
            report = show(scratch, *options, code=0 if good else 1)
            if good:
                found = report["layers"][0]["scales"]["k"]
                expect(found["bits"], bits(rounded)[0], f"{value} as {dtype}, rounded to {option or 'f32'}")
                expect(found["dtype"], dtype, "dtype")
