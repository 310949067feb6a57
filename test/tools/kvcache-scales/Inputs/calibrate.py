"""Writes activations, or compares what kvcache-scales made of them with numpy.

usage: calibrate.py FOLDER [--compare]
"""

import json
import sys

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def samples():
    """Names to arrays, of the two files."""
    rng = np.random.default_rng(20261130)

    def normal(heads, spread):
        return (rng.standard_normal((37, heads, 16)) * spread).astype(np.float32)

    first, second = {}, {}
    for layer in range(3):
        for role, heads in (("q", 4), ("k", 2), ("v", 2)):
            name = f"layers.{layer}.{role}"
            first[name] = normal(heads, 1 + layer)
            # The largest value of layer 1 is in the second file.
            second[name] = normal(heads, 9 if layer == 1 else 0.5)
    first["layers.1.k"] = first["layers.1.k"].astype(np.float16)
    second["layers.2.v"] = second["layers.2.v"].astype(ml_dtypes.bfloat16)
    second["layers.2.q"] = second["layers.2.q"].astype(np.float64)
    first["positions"] = np.arange(7)
    return first, second


def write(folder):
    first, second = samples()
    save_file(first, f"{folder}/a.safetensors")
    save_file(second, f"{folder}/b.safetensors")
    save_file({"layers.0.k": np.array([1, np.nan], np.float32)}, f"{folder}/nan.safetensors")
    save_file({"layers.0.k": np.zeros((2, 2), np.float32)}, f"{folder}/zero.safetensors")
    save_file({"layers.0.k": np.ones(2, np.int32)}, f"{folder}/integers.safetensors")
    latent = {
        "model.layers.0.self_attn.kv_c": np.array([[1, -3]], np.float32),
        "model.layers.0.self_attn.k_pe": np.array([[[5]]], np.float32),
    }
    save_file(latent, f"{folder}/latent.safetensors")


def expect(condition, what):
    if not condition:
        sys.exit(f"differs from numpy: {what}")


def scale_of(magnitude, largest):
    return np.float32(np.float64(magnitude) / largest)


def loss_of(values, scale):
    codes = np.clip(values / np.float32(scale), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    back = codes.astype(np.float64) * np.float64(scale)
    exact = values.astype(np.float64)
    noise = ((exact - back) ** 2).sum()
    saturated = (np.abs(values / np.float32(scale)) > 448).mean()
    return saturated, 10 * np.log10((exact**2).sum() / noise)


def compare(folder):
    first, second = samples()
    amax = load_file(f"{folder}/amax.safetensors")
    percentile = load_file(f"{folder}/p.safetensors")
    e5m2 = load_file(f"{folder}/e5m2.safetensors")
    checked = {(row["layer"], row["role"]): row for row in json.load(open(f"{folder}/check.json"))["activations"]}
    expect(len(amax) == 9, "number of scales")
    for layer in range(3):
        for role in "qkv":
            name = f"layers.{layer}.{role}"
            module = f"model.layers.{layer}.self_attn"
            key = f"{module}.{role}_proj.{role}_scale"
            all_values = np.concatenate(
                [np.abs(file[name].astype(np.float32)).ravel() for file in (first, second)]
            )
            expected = scale_of(all_values.max(), 448)
            expect(amax[key].shape == () and amax[key].dtype == np.float32, key)
            expect(amax[key] == expected, f"{key}: {amax[key]} is not {expected}")
            cut = np.quantile(all_values, 0.995, method="inverted_cdf")
            expect(percentile[key] == scale_of(cut, 448), f"percentile of {key}")
            values = first[name].astype(np.float32)
            expect(e5m2[key] == scale_of(np.abs(values).max(), 57344), f"e5m2 {key}")
            row = checked.get((module, role))
            expect((row is None) == (layer == 2), f"check of {key}")
            if row is None:
                continue
            divisor = np.float32(100 if role == "v" else 200)
            scales = {
                "checkpoint": float(expected),
                "one": 1.0,
                "run_time": float(np.abs(values).max() / divisor),
            }
            for what, scale in scales.items():
                saturated, snr = loss_of(values, scale)
                expect(row[what]["scale"] == scale, f"{what} scale of {key}: {row[what]['scale']} is not {scale}")
                expect(abs(row[what]["saturated"] - saturated) < 1e-12, f"{what} saturation of {key}")
                expect(abs(row[what]["snr_db"] - snr) < 1e-6, f"{what} SNR of {key}")
    with safe_open(f"{folder}/p.safetensors", "np") as file:
        expect(file.metadata()["kvcache.calibration"] == "percentile 99.5", "metadata")
    latent = load_file(f"{folder}/mla.safetensors")
    expect(list(latent) == ["model.layers.0.self_attn.k_proj.k_scale"], "names for MLA")
    expect(float(latent.popitem()[1]) == float(scale_of(5, 448)), "MLA takes the larger of latent and rope")


if "--compare" in sys.argv:
    compare(sys.argv[1])
else:
    write(sys.argv[1])
