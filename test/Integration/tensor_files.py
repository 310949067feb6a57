"""Safetensors files as numpy arrays, every element type kept as it is stored.

numpy has no bfloat16 and no 8-bit floats, so a `Tensor` holds the codes (as
unsigned integers) and the name of their type; `values` gives the exact numbers.
"""

import json
import struct
from typing import NamedTuple

import numpy as np
import safetensors

STORAGE = {
    "BOOL": np.uint8, "U8": np.uint8, "I8": np.int8, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8,
    "F8_E4M3FNUZ": np.uint8, "U16": np.uint16, "I16": np.int16, "F16": np.float16,
    "BF16": np.uint16, "U32": np.uint32, "I32": np.int32, "F32": np.float32, "U64": np.uint64,
    "I64": np.int64, "F64": np.float64,
}


class Tensor(NamedTuple):
    dtype: str
    data: np.ndarray


def read(path):
    """All tensors of a file: name -> Tensor."""
    with open(path, "rb") as file:
        entries = safetensors.deserialize(file.read())
    return {name: Tensor(entry["dtype"],
                         np.frombuffer(bytes(entry["data"]), STORAGE[entry["dtype"]])
                         .reshape(entry["shape"]))
            for name, entry in entries}


def write(path, tensors):
    """Writes name -> Tensor. The package's own writer wants a type for each
    element type of numpy, which has too few."""
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        blob = np.ascontiguousarray(tensor.data).tobytes()
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.data.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def _e4m3_table():
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9,
                         (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude = np.where((codes & 0x7F) == 0x7F, np.nan, magnitude)
    return np.where(codes & 0x80, -magnitude, magnitude)


def _e5m2_table():
    codes = np.arange(256)
    exponent, mantissa = (codes >> 2) & 31, codes & 3
    magnitude = np.where(exponent == 0, mantissa * 2.0**-16,
                         (1 + mantissa / 4) * 2.0 ** (exponent - 15.0))
    magnitude = np.where(exponent == 31, np.where(mantissa == 0, np.inf, np.nan), magnitude)
    return np.where(codes & 0x80, -magnitude, magnitude)


E4M3 = _e4m3_table()
E5M2 = _e5m2_table()


def values(tensor):
    """The numbers of a tensor, exact, as float64."""
    if tensor.dtype == "BF16":
        return (tensor.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if tensor.dtype == "F8_E4M3":
        return E4M3[tensor.data]
    if tensor.dtype == "F8_E5M2":
        return E5M2[tensor.data]
    return tensor.data.astype(np.float64)


def quantize_e4m3(x, scale):
    """float32 values and an f32 scale -> e4m3 codes: a true division in f32,
    saturation, and the nearest of the 253 finite values, ties to even codes."""
    with np.errstate(invalid="ignore", over="ignore"):
        quotient = (np.asarray(x, np.float32) / np.float32(scale)).astype(np.float64)
    magnitude = np.minimum(np.abs(quotient), 448.0)
    grid = E4M3[:0x7F]
    upper = np.searchsorted(grid, magnitude)
    lower = np.maximum(upper - 1, 0)
    below, above = magnitude - grid[lower], grid[np.minimum(upper, 0x7E)] - magnitude
    code = np.where((below < above) | ((below == above) & (lower % 2 == 0)), lower, upper)
    code = np.where(np.signbit(quotient), code | 0x80, code)
    return np.where(np.isnan(quotient), 0x7F, code).astype(np.uint8)
