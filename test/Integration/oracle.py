#!/usr/bin/env python3
"""Checks what a compiled bundle computed, without reading anything that the
compiler concluded.

Reads the original graph (layer names), the checkpoint directory (scales,
config.json), and a golden run (the operands of each step). Computes the bytes
of the caches and the attention outputs by itself, in double precision, and
compares them with the tensors that `kvcache-run --outputs` wrote:

  stepN.layer0.output   attention of step N (without stepN. if there is one step)
  layer0.k_cache        the cache after the last step
  stepN.result0         hidden states, in a free run of the whole model

Cache bytes must agree bit for bit, also those that no step writes. An
attention output may differ by one bf16 step of the element plus 2^-9 of the
row's sum of |p v| (probabilities are f16 in a kernel), and by 0.01 of the
row's largest.

With --operands=outputs the operands are those that the run itself produced
(stepN.layer0.query and so on), and the model's logits are compared with the
golden ones within the tolerance for free-running logits.

Prints a table, then one line of JSON. Exit code 0 if everything is right, 1 if
something is wrong, 2 if it cannot be judged.
"""

import argparse
import glob
import json
import math
import os
import re
import sys

import numpy as np

import golden
import tensor_files

SIDES = ("k", "v")
# Families whose softmax scale is head_dim^-0.5 and nothing else.
PLAIN_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


class CannotJudge(Exception):
    """The inputs do not say what would be right."""


def layer_names(graph):
    """Attention layers of a graph in order, from its text."""
    with open(graph) as file:
        found = re.findall(r'layer_name\s*=\s*"([^"]+)"', file.read())
    names = list(dict.fromkeys(found))
    if not names:
        raise CannotJudge(f"{graph} has no layer_name")
    return names


def layer_index(name):
    numbers = re.findall(r"\.(\d+)\.", name)
    if len(numbers) != 1:
        raise CannotJudge(f"layer {name} does not have one index")
    return int(numbers[0])


def read_json(path):
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


class Checkpoint:
    def __init__(self, folder):
        self.config = read_json(os.path.join(folder, "config.json"))
        if not self.config:
            raise CannotJudge(f"{folder} has no config.json")
        self.quantization = self.config.get("quantization_config") or read_json(
            os.path.join(folder, "hf_quant_config.json")).get("quantization", {})
        self.tensors = {}
        for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
            self.tensors.update(tensor_files.read(path))

    def softmax_scale(self):
        family = self.config.get("model_type")
        if family not in PLAIN_FAMILIES:
            raise CannotJudge(f"softmax scale of model type {family}")
        return self.head_dim() ** -0.5

    def heads(self):
        return self.config["num_attention_heads"], self.config["num_key_value_heads"]

    def head_dim(self):
        return self.config.get("head_dim") or (
            self.config["hidden_size"] // self.config["num_attention_heads"])

    def declares_fp8(self):
        scheme = self.quantization.get("kv_cache_scheme")
        if isinstance(scheme, dict):
            return scheme.get("type") == "float" and scheme.get("num_bits") == 8
        return self.quantization.get("kv_cache_quant_algo") == "FP8"

    def scale(self, names):
        for name in names:
            if name in self.tensors:
                values = tensor_files.values(self.tensors[name]).reshape(-1)
                if len(values) != 1:
                    raise CannotJudge(f"{name} has {len(values)} values")
                return np.float32(values[0])
        return None

    def scales(self, layer):
        """k and v of a layer: its own name, else the other's, else 1."""
        attention = re.sub(r"\.attn$", "", layer)
        found = {}
        for side in SIDES:
            found[side] = self.scale([
                f"{attention}.{side}_proj.{side}_scale", f"{attention}.qkv_proj.{side}_scale",
                f"{attention}.attn.{side}_scale", f"{attention}.{side}_scale",
                f"{attention}.{side}_proj.output_scale", f"{attention}.kv_scale"])
        k, v = found["k"], found["v"]
        if k is None and v is None:
            return {"k": np.float32(1), "v": np.float32(1)}
        scales = {"k": v if k is None else k, "v": k if v is None else v}
        for side, value in scales.items():
            if not (np.isfinite(value) and value > 0):
                raise CannotJudge(f"{side} scale of {layer} is {value}")
        return scales


class Cache:
    """One side (k or v) of one layer's cache."""

    def __init__(self, quantized, pages, page_size, heads, dim, fill, scale):
        self.quantized, self.scale = quantized, scale
        self.page_size = page_size
        code = fill if quantized else fill * 0x0101
        self.codes = np.full((pages, page_size, heads, dim), code,
                             np.uint8 if quantized else np.uint16)

    def write(self, rows, slots):
        for row, slot in zip(rows.data, slots):
            if not 0 <= slot < self.codes.shape[0] * self.page_size:
                continue
            x = tensor_files.values(tensor_files.Tensor(rows.dtype, row)).astype(np.float32)
            self.codes[slot // self.page_size, slot % self.page_size] = (
                tensor_files.quantize_e4m3(x, self.scale) if self.quantized else row)

    def sequence(self, table, length):
        """Values of a sequence's tokens, [length, heads, dim]."""
        pages = table[:-(-length // self.page_size)]
        codes = self.codes[pages].reshape(-1, *self.codes.shape[2:])[:length]
        if self.quantized:
            return tensor_files.E4M3[codes] * np.float64(self.scale)
        return tensor_files.values(tensor_files.Tensor("BF16", codes))


def attend(query, k_cache, v_cache, step, softmax_scale):
    """Attention in double precision, and the sum of |p v| for each element."""
    q = tensor_files.values(query)
    out, spread = np.zeros(q.shape), np.zeros(q.shape)
    table, lengths, starts = (step[name].data for name in ("page_table", "lengths", "query_start"))
    for s, length in enumerate(lengths):
        keys, vals = (cache.sequence(table[s], int(length)) for cache in (k_cache, v_cache))
        group = q.shape[1] // keys.shape[1]
        for row in range(starts[s], starts[s + 1]):
            seen = int(length) - int(starts[s + 1]) + row + 1
            for head in range(q.shape[1]):
                scores = softmax_scale * (keys[:seen, head // group] @ q[row, head])
                p = np.exp(scores - scores.max())
                p /= p.sum()
                out[row, head] = p @ vals[:seen, head // group]
                spread[row, head] = p @ np.abs(vals[:seen, head // group])
    return out, spread


class Outputs:
    """The tensors of a run, whatever shape its capacities gave them."""

    def __init__(self, path):
        self.tensors = tensor_files.read(path)
        self.many_steps = any(name.startswith("step") for name in self.tensors)

    def get(self, name, step=None):
        if step is not None and self.many_steps:
            name = f"step{step}.{name}"
        return self.tensors.get(name)

    def rows(self, name, step, count, shape):
        """The first `count` rows of an activation."""
        tensor = self.get(name, step)
        if tensor is None or tensor.data.size % math.prod(shape):
            return None
        data = tensor.data.reshape(-1, *shape)
        return tensor_files.Tensor(tensor.dtype, data[:count]) if len(data) >= count else None

    def cache(self, layer, side, page_size, heads, dim):
        """Codes of a cache [page, token, head, dim], whatever its layout was."""
        tensor = self.get(f"{layer}.{side}_cache")
        return None if tensor is None else tensor.data.reshape(-1, page_size, heads, dim)


def excess(out, reference, spread):
    """Largest error in units of what is allowed; at most 1 is right."""
    row = np.abs(reference).max(-1, keepdims=True)
    allowed = np.minimum(2.0**-7 * np.abs(reference) + 2.0**-9 * spread, 0.01 * row)
    difference = np.abs(out - reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(difference == 0, 0.0, difference / allowed)
    return float(np.nan_to_num(units, nan=np.inf).max(initial=0.0))


class Oracle:
    def __init__(self, options):
        self.options = options
        self.checkpoint = Checkpoint(options.checkpoint)
        self.outputs = Outputs(options.outputs)
        self.steps = golden.steps(options.golden)
        if not self.steps:
            raise CannotJudge(f"{options.golden} has no step0.safetensors")
        with open(options.graph) as file:
            asked = re.findall(r'kv_cache_dtype\s*=\s*"([^"]+)"', file.read())
        word = next((w for w in [options.kv_cache_dtype, *asked] if w not in (None, "auto")), None)
        if word not in (None, "fp8", "fp8_e4m3", "bfloat16"):
            raise CannotJudge(f"cache type {word}")
        self.quantized = self.checkpoint.declares_fp8() if word is None else word != "bfloat16"
        self.errors = []
        self.counts = {"steps": len(self.steps), "layers": 0, "attention_elements": 0,
                       "attention_max_error": 0.0, "attention_worst_units": 0.0,
                       "cache_bytes": 0, "cache_bytes_differing": 0}
        self.table = []

    def operand(self, step, n, layer, name, golden_name):
        """q, k or v of a step: the golden one, or what the run produced."""
        stored = step.get(golden_name)
        if self.options.operands == "golden":
            if stored is None:
                raise CannotJudge(f"step {n} of {self.options.golden} has no {golden_name}")
            return stored
        heads = self.checkpoint.heads()[0 if name == "query" else 1]
        rows = self.outputs.rows(f"{layer}.{name}", n, len(step["slot_mapping"].data),
                                 (heads, self.checkpoint.head_dim()))
        if rows is None:
            raise CannotJudge(f"the outputs have no step{n}.{layer}.{name}")
        return rows

    def check_layer(self, name):
        index = layer_index(name)
        layer = f"layer{index}"
        q_heads, kv_heads = self.checkpoint.heads()
        dim, page_size = self.checkpoint.head_dim(), self.options.page_size
        scales = self.checkpoint.scales(name) if self.quantized else dict.fromkeys(SIDES)
        found = {side: self.outputs.cache(layer, side, page_size, kv_heads, dim) for side in SIDES}
        for side, codes in found.items():
            if codes is None:
                self.errors.append(f"{layer}.{side}_cache is missing")
        if any(codes is None for codes in found.values()):
            return
        caches = {side: Cache(self.quantized, len(found[side]), page_size, kv_heads, dim,
                              self.options.cache_fill, scales[side]) for side in SIDES}

        worst, largest = 0.0, 0.0
        for n, step in enumerate(self.steps):
            operands = {role: self.operand(step, n, layer, role, f"layers.{index}.{role[0]}")
                        for role in ("query", "key", "value")}
            slots = step["slot_mapping"].data
            caches["k"].write(operands["key"], slots)
            caches["v"].write(operands["value"], slots)
            reference, spread = attend(operands["query"], caches["k"], caches["v"], step,
                                       self.checkpoint.softmax_scale())
            out = self.outputs.rows(f"{layer}.output", n, len(slots), (q_heads, dim))
            if out is None:
                self.errors.append(f"step {n}: {layer}.output is missing or too small")
                continue
            out = tensor_files.values(out)
            units = excess(out, reference, spread)
            worst = max(worst, units)
            largest = max(largest, float(np.nan_to_num(np.abs(out - reference), nan=np.inf).max()))
            self.counts["attention_elements"] += out.size
            if units > 1:
                self.errors.append(f"step {n}: {layer}.output is wrong by {units:.2f} times what is "
                                   "allowed")
        self.counts["attention_max_error"] = max(self.counts["attention_max_error"], largest)
        self.counts["attention_worst_units"] = max(self.counts["attention_worst_units"], worst)

        differing = {}
        for side in SIDES:
            expected = caches[side].codes
            wrong = found[side].view(expected.dtype) != expected
            differing[side] = int(wrong.sum())
            self.counts["cache_bytes"] += expected.nbytes
            self.counts["cache_bytes_differing"] += differing[side] * expected.itemsize
            if wrong.any():
                page, token, head, d = np.argwhere(wrong)[0]
                self.errors.append(
                    f"{layer}.{side}_cache: {differing[side]} codes differ, first at page {page}, "
                    f"token {token}, head {head}, dim {d}: {found[side][page, token, head, d]:#x}, "
                    f"expected {expected[page, token, head, d]:#x}")
        self.counts["layers"] += 1
        self.table.append((name, *(f"{scales[s]:.6g}" if self.quantized else "-" for s in SIDES),
                           f"{largest:.3g}", f"{worst:.2f}", differing["k"], differing["v"]))

    def check_logits(self):
        """Hidden states of a free run, through the head that the graph lacks."""
        extra = os.path.join(os.path.dirname(os.path.abspath(self.options.golden)),
                             "extra.safetensors")
        if not os.path.exists(extra):
            raise CannotJudge(f"{extra} with lm_head.weight is missing")
        lm_head = tensor_files.read(extra)["lm_head.weight"]
        check = golden.LogitsCheck()
        for n, step in enumerate(self.steps):
            hidden = self.outputs.rows("result0", n, len(step["hidden"].data),
                                       step["hidden"].data.shape[1:])
            if hidden is None:
                self.errors.append(f"step {n}: result0 (hidden states) is missing or too small")
                continue
            check.add(golden.logits_of(hidden.data, lm_head), step["logits"].data)
        self.counts.update(check.figures() if check.count else {})
        if not check.count or not check.passed:
            self.errors.append(f"logits: {check.figures() if check.count else 'none'}; allowed are "
                               f"max {golden.LOGITS_MAX}, rms {golden.LOGITS_RMS}")

    def run(self):
        for name in layer_names(self.options.graph):
            self.check_layer(name)
        if self.options.operands == "outputs":
            self.check_logits()
        return not self.errors

    def print(self, verified):
        header = ("layer", "k scale", "v scale", "attention error", "of allowed", "k codes wrong",
                  "v codes wrong")
        rows = [header, *([str(cell) for cell in row] for row in self.table)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        for error in self.errors:
            print("wrong:", error)
        print(json.dumps({"verified": verified, "errors": len(self.errors), "counts": self.counts}))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", required=True, help="the exported graph that was compiled")
    parser.add_argument("--checkpoint", required=True, help="the checkpoint it was compiled with")
    parser.add_argument("--golden", required=True, help="folder of stepN.safetensors")
    parser.add_argument("--outputs", required=True, help="what kvcache-run --outputs wrote")
    parser.add_argument("--operands", choices=("golden", "outputs"), default="golden")
    parser.add_argument("--kv-cache-dtype", help="as given to kvcache-compile")
    parser.add_argument("--page-size", type=int, default=golden.PAGE_SIZE)
    parser.add_argument("--cache-fill", type=lambda text: int(text, 0), default=golden.FILL,
                        help="the byte that the caches held before the first step")
    options = parser.parse_args()
    try:
        oracle = Oracle(options)
        verified = oracle.run()
    except (CannotJudge, OSError, KeyError) as reason:
        print("cannot judge:", reason, file=sys.stderr)
        print(json.dumps({"verified": False, "errors": 1, "counts": {}}))
        return 2
    oracle.print(verified)
    return 0 if verified else 1


if __name__ == "__main__":
    sys.exit(main())
