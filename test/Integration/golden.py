"""The golden decode runs: what they hold, and how far from them is right.

A run is a folder of step0.safetensors ... and, for quantized caches,
cache.safetensors with the cache after the last step. See the README beside
them for the semantics and for what other changes than ours do to the figures.
"""

import os
import re

import numpy as np

import tensor_files

PAGE_SIZE = 16
# The cache's memory before the first step.
FILL = 0x7E
# Free-running logits: a rounding flip of one bf16 can flip codes of the next
# layer, so legal changes move logits by up to 0.10 (rms 0.022).
LOGITS_MAX, LOGITS_RMS = 0.15, 0.03
# Where the two best logits are this far apart, the argmax must agree.
CLEAR_MARGIN = 0.3


def steps(folder):
    names = sorted((name for name in os.listdir(folder) if re.fullmatch(r"step\d+\.safetensors", name)),
                   key=lambda name: int(re.search(r"\d+", name).group(0)))
    return [tensor_files.read(os.path.join(folder, name)) for name in names]


def graph_arguments(graph):
    """Argument names of an exported graph, from the comment in its first line."""
    with open(graph) as file:
        line = file.readline()
    return [name for _, name in re.findall(r"(\d+)=([^,\s]+)", line)]


def attention_excess(out, reference):
    """How far attention is outside of 'f32 throughout on equal operands': one
    bf16 step of the element (2^-7 |ref|) plus 1e-4 of the row's largest. Both
    arguments are values [tokens, heads, dim]; at most 1 is right."""
    allowed = 2.0**-7 * np.abs(reference) + 1e-4 * np.abs(reference).max(-1, keepdims=True)
    difference = np.abs(out - reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(difference == 0, 0.0, difference / allowed)
    return float(np.nan_to_num(excess, nan=np.inf).max(initial=0.0))


class LogitsCheck:
    """Differences of logits over a run."""

    def __init__(self):
        self.squares, self.count, self.largest = 0.0, 0, 0.0
        self.rows, self.agreeing, self.clear_disagreements = 0, 0, 0

    def add(self, logits, reference):
        difference = np.abs(logits.astype(np.float64) - reference)
        self.largest = max(self.largest, float(np.nan_to_num(difference, nan=np.inf).max()))
        self.squares += float((difference**2).sum())
        self.count += difference.size
        same = logits.argmax(-1) == reference.argmax(-1)
        best = np.sort(reference, -1)
        clear = best[:, -1] - best[:, -2] > CLEAR_MARGIN
        self.rows += len(same)
        self.agreeing += int(same.sum())
        self.clear_disagreements += int((~same & clear).sum())

    @property
    def rms(self):
        return float(np.sqrt(self.squares / self.count))

    @property
    def passed(self):
        return bool(self.largest <= LOGITS_MAX and self.rms <= LOGITS_RMS
                    and self.clear_disagreements == 0)

    def figures(self):
        return {"logits_max": self.largest, "logits_rms": self.rms,
                "argmax": f"{self.agreeing}/{self.rows}",
                "clear_argmax_errors": self.clear_disagreements}


def logits_of(hidden, lm_head):
    """hidden (bf16 codes) times lm_head^T, in f64, rounded once to f32."""
    values = tensor_files.values(tensor_files.Tensor("BF16", hidden))
    return (values @ tensor_files.values(lm_head).T).astype(np.float32)


def cache_difference(codes, reference, scale):
    """Codes of a free-running cache against the stored one: how many differ,
    and the largest difference of their values (not of their codes: near zero
    a small difference is many codes)."""
    difference = np.abs(tensor_files.E4M3[codes] - tensor_files.E4M3[reference]) * float(scale)
    return int((codes != reference).sum()), float(np.nan_to_num(difference, nan=np.inf).max())
