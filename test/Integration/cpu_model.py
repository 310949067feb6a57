"""Compiles a graph of linalg and kvcache ops for the CPU, with the reference
semantics of the kvcache ops, and calls it with numpy arrays.

Kvcache passes come first; then upstream's passes down to the LLVM dialect, all
in kvcache-opt; then mlir-translate and clang make a shared object.
"""

import ctypes
import os
import re
import shutil
import subprocess

import numpy as np

# From linalg on tensors to the LLVM dialect. rsqrt has no lowering of its own;
# bf16 arithmetic is done in f32 and rounded after every op, as torch does.
UPSTREAM = [
    "--one-shot-bufferize=bufferize-function-boundaries=1 "
    "function-boundary-type-conversion=identity-layout-map",
    "--convert-linalg-to-loops", "--expand-strided-metadata", "--lower-affine",
    "--math-expand-ops=ops=fpowi,rsqrt",
    "--arith-emulate-unsupported-floats=source-types=bf16 target-type=f32", "--canonicalize",
    "--arith-expand=include-bf16=true", "--convert-scf-to-cf", "--convert-math-to-llvm",
    "--convert-math-to-libm", "--convert-arith-to-llvm", "--finalize-memref-to-llvm",
    "--llvm-request-c-wrappers", "--convert-func-to-llvm", "--convert-cf-to-llvm",
    "--convert-index-to-llvm", "--reconcile-unrealized-casts",
]
REFERENCE = ["--kvcache-caches-to-arguments", "--convert-kvcache-to-reference"]


def find_tool(name):
    """A tool of LLVM 22: with its version on PATH, in Debian's folder, or plain
    (which may be an older one, so it comes last)."""
    for candidate in (name + "-22", "/usr/lib/llvm-22/bin/" + name, name):
        if shutil.which(candidate):
            return shutil.which(candidate)
    raise FileNotFoundError(f"{name} of LLVM 22 is not on PATH and not in /usr/lib/llvm-22/bin")


def run_tool(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}\nexit code {result.returncode}\n{result.stderr}")
    return result.stderr


def descriptor(rank):
    """MLIR's descriptor of a memref of this rank."""

    class Descriptor(ctypes.Structure):
        _fields_ = [("allocated", ctypes.c_void_p), ("aligned", ctypes.c_void_p),
                    ("offset", ctypes.c_int64), ("sizes", ctypes.c_int64 * rank),
                    ("strides", ctypes.c_int64 * rank)]
    return Descriptor


def to_descriptor(array):
    """An array as a memref: its strides, offset 0 from its first element."""
    strides = [stride // array.itemsize for stride in array.strides]
    return descriptor(array.ndim)(array.ctypes.data, array.ctypes.data, 0,
                                  (ctypes.c_int64 * array.ndim)(*array.shape),
                                  (ctypes.c_int64 * array.ndim)(*strides))


class CpuModel:
    """@main of a graph. Arguments are numpy arrays of the element's width, in
    order; results come back as arrays of unsigned integers of that width."""

    def __init__(self, kvcache_opt, graph, workdir, passes=(), stem="model"):
        path = os.path.join(workdir, stem)
        run_tool(kvcache_opt, graph, "--allow-unregistered-dialect", *passes, *REFERENCE,
                 "-o", path + ".reference.mlir")
        run_tool(kvcache_opt, path + ".reference.mlir", *UPSTREAM, "-o", path + ".llvm.mlir")
        run_tool(find_tool("mlir-translate"), "--mlir-to-llvmir", path + ".llvm.mlir",
                 "-o", path + ".ll")
        libraries = os.path.normpath(
            os.path.join(os.path.dirname(os.path.realpath(find_tool("mlir-translate"))), "../lib"))
        # Without contraction and value-changing optimisation; strided copies
        # of memrefs are a function of MLIR's runner library.
        run_tool(find_tool("clang"), "-O1", "-ffp-contract=off", "-Wno-override-module", "-shared",
                 "-fPIC", path + ".ll", "-o", path + ".so", "-L" + libraries,
                 "-lmlir_c_runner_utils", "-Wl,-rpath," + libraries, "-lm")
        with open(path + ".reference.mlir") as file:
            self.signature = re.search(r"func\.func @main\((.*?)\) (?:-> (.*?) )?(?:attributes .*)?\{$",
                                       file.read(), re.M)
        self.library = ctypes.CDLL(path + ".so")
        self.main = getattr(self.library, "_mlir_ciface_main")
        self.main.restype = None

    def argument_names(self):
        """The kvcache.name of each argument, or the kvcache.weight that it is; None for the
        graph's own."""
        arguments = re.split(r", (?=%arg\d+:)", self.signature.group(1))
        names = [re.search(r'kvcache\.(?:name|weight) = "([^"]*)"', argument) for argument in arguments]
        return [name and name.group(1) for name in names]

    def result_types(self):
        """(shape, bytes per element) of each result; -1 is dynamic."""
        types = []
        for text in re.findall(r"tensor<([^>]*)>", self.signature.group(2) or ""):
            *shape, element = text.split("x")
            width = int(re.search(r"\d+", element).group(0))
            types.append(([-1 if size == "?" else int(size) for size in shape], width // 8))
        return types

    def __call__(self, *arguments):
        results = self.result_types()
        fields = [(f"r{i}", descriptor(len(shape))) for i, (shape, _) in enumerate(results)]
        pack = type("Results", (ctypes.Structure,), {"_fields_": fields})()
        pointers = [ctypes.byref(pack)] if results else []
        descriptors = [to_descriptor(argument) for argument in arguments]
        self.main(*pointers, *map(ctypes.byref, descriptors))
        arrays = []
        for i, (_, width) in enumerate(results):
            d = getattr(pack, f"r{i}")
            assert d.aligned, "the result has no memory"
            count = 1 + sum((n - 1) * s for n, s in zip(d.sizes, d.strides))
            flat = np.ctypeslib.as_array(
                (ctypes.c_uint8 * (count * width)).from_address(d.aligned + d.offset * width))
            flat = flat.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[width])
            arrays.append(np.lib.stride_tricks.as_strided(
                flat, list(d.sizes), [s * width for s in d.strides]).copy())
        return arrays
