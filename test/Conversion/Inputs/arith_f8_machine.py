"""Checks 8-bit float conversions on the PTX machine against their definition."""

import argparse
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import ptx_machine

FORMATS = {"f8E4M3FN": (4, 3, 448.0), "f8E5M2": (5, 2, 57344.0)}
WIDE = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
CHIPS = {"sm_80": False, "sm_90": True}
# f64 kernels are long; 16-bit types are tried with all their values.
MANY = 65536
FEW = 6144


def decode(name):
    """The value of each code, by the definition of the format."""
    exponent_bits, mantissa_bits, _ = FORMATS[name]
    bias = 2 ** (exponent_bits - 1) - 1
    values = np.zeros(256)
    for code in range(256):
        exponent = (code & 0x7F) >> mantissa_bits
        mantissa = code & ((1 << mantissa_bits) - 1)
        if exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            value = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
        if name == "f8E4M3FN" and code & 0x7F == 0x7F:
            value = np.nan
        if name == "f8E5M2" and exponent == 31:
            value = np.inf if mantissa == 0 else np.nan
        values[code] = -value if code & 0x80 else value
    return values


def narrow(values, name):
    """Codes of f64 values: saturate, round once to nearest even."""
    largest = FORMATS[name][2]
    magnitudes = decode(name)[:0x80]
    finite = magnitudes[np.isfinite(magnitudes)]
    nan = np.isnan(values)
    x = np.minimum(np.abs(np.where(nan, 0, values)), largest)
    # Codes of positive values ascend; a midpoint of two codes is exact in f64.
    lower = np.clip(np.searchsorted(finite, x, side="right") - 1, 0, len(finite) - 1)
    upper = np.minimum(lower + 1, len(finite) - 1)
    middle = (finite[lower] + finite[upper]) / 2
    up = (x > middle) | ((x == middle) & (lower % 2 == 1))
    codes = np.where(up, upper, lower) | np.where(np.signbit(values), 0x80, 0)
    return np.where(nan, 0x7F, codes).astype(np.uint8)


def inputs(wide, name):
    if wide in ("f16", "bf16"):
        return np.arange(MANY, dtype=np.uint16).view(WIDE[wide])
    rng = np.random.default_rng(0)
    finite = decode(name)
    finite = np.unique(finite[np.isfinite(finite)])
    middles = (finite[1:] + finite[:-1]) / 2
    interesting = np.concatenate([finite, middles, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-40, 464.0, 61440.0]])
    # Beside a tie, by less than f32 can tell: a double rounding shows here.
    tiny = np.concatenate([middles * (1 + 2.0**-40), middles * (1 - 2.0**-40), [1e300, -1e300, 5e-324]])
    if wide == "f64":
        interesting = np.concatenate([interesting, tiny])
    interesting = interesting.astype(WIDE[wide])
    for direction in (np.inf, -np.inf):
        interesting = np.concatenate([interesting, np.nextafter(interesting, WIDE[wide](direction))])
    count = FEW - len(interesting)
    random = rng.standard_normal(count) * 2.0 ** rng.integers(-20, 20, count)
    return np.concatenate([interesting, random.astype(WIDE[wide])])


def kernel(kind, wide, name, width, count):
    """One gpu.func that converts `count` elements, `width` in a thread."""
    source, target = (wide, name) if kind == "narrow" else (name, wide)
    op = "arith.truncf" if kind == "narrow" else "arith.extf"
    symbol = f"{kind}_{wide}_{name}_{width}"
    if width == 1:
        load = f"memref.load %x[%i] : memref<{count}x{source}>"
        store = f"memref.store %b, %y[%i] : memref<{count}x{target}>"
        a, b = source, target
    else:
        a, b = f"vector<{width}x{source}>", f"vector<{width}x{target}>"
        load = f"vector.load %x[%i] : memref<{count}x{source}>, {a}"
        store = f"vector.store %b, %y[%i] : memref<{count}x{target}>, {b}"
    return symbol, f"""
  gpu.func @{symbol}(%x: memref<{count}x{source}>, %y: memref<{count}x{target}>) kernel {{
    %t = gpu.global_id x
    %width = arith.constant {width} : index
    %i = arith.muli %t, %width : index
    %a = {load}
    %b = {op} %a : {a} to {b}
    {store}
    gpu.return
  }}"""


def compile_module(opt, pipeline, chip, text):
    pipeline = re.sub(r"\s+(?=\S)", " ", pipeline.replace("sm_90", chip)).replace("( ", "(").replace(", ", ",")
    done = subprocess.run([opt, "-", f"--pass-pipeline={pipeline}"], input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    assembly = re.search(r'assembly = "((?:[^"\\]|\\.)*)"', done.stdout).group(1)
    return re.sub(r"\\([0-9A-Fa-f]{2}|.)", lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1], assembly).rstrip("\0")


def launch(machine, module, symbol, count, arguments):
    report = machine.launch(module, symbol, (count // 128,), (128,), 0, arguments)
    if report["findings"]:
        sys.exit(f"{symbol}: {report['findings'][:2]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--docs", required=True)
    parser.add_argument("--opt", required=True)
    options = parser.parse_args()
    np.seterr(over="ignore", invalid="ignore") # infinities and NaN are inputs
    docs = open(options.docs).read()
    example = re.search(r"```mlir kernel\n(.*?)```", docs, re.S).group(1)
    pipeline = re.search(r"```pipeline\n(.*?)```", docs, re.S).group(1)

    cases = []
    for name in FORMATS:
        for wide in WIDE:
            for kind in ("narrow", "widen"):
                count = 384 if kind == "widen" else len(inputs(wide, name))
                for width in (1, 3 if kind == "widen" or wide in ("f32", "f64") else 4):
                    cases.append((kind, wide, name, width, count))
        # Odd and even lengths, whole registers and more.
        for width in (2, 5, 8, 17, 32):
            cases.append(("widen", "bf16", name, width, 128 * max(width, 2)))
        for width in (2, 6, 8, 16, 24):
            cases.append(("narrow", "f32", name, width, FEW))
    for chip, has_cvt in CHIPS.items():
        kernels = [kernel(*case) for case in cases]
        text = "gpu.module @kernels {" + "".join(body for _, body in kernels) + "\n}\n"
        ptx = compile_module(options.opt, pipeline, chip, text)
        if ("satfinite.e4m3x2" in ptx) != has_cvt:
            sys.exit(f"{chip}: expected cvt {'and found none' if has_cvt else 'to be absent and found it'}")
        machine = ptx_machine.Machine()
        module = machine.module(ptx, chip)
        for (kind, wide, name, width, count), (symbol, _) in zip(cases, kernels):
            if kind == "narrow":
                x = inputs(wide, name)
                y = np.zeros(count, np.uint8)
                expected = narrow(x.astype(np.float64), name)
            else:
                x = (np.arange(count) % 256).astype(np.uint8)
                y = np.zeros(count, WIDE[wide])
                expected = decode(name)[x]
            out = machine.output(y, "out")
            launch(machine, module, symbol, count // width, [machine.buffer(x.view(np.uint8), "in"), out])
            if not machine.initialised(out, y.nbytes).all():
                sys.exit(f"{chip} {symbol}: bytes were not written")
            machine.clear()
            got = y if kind == "narrow" else y.astype(np.float64)
            same = (got == expected) & (np.signbit(got.astype(np.float64)) == np.signbit(expected.astype(np.float64)))
            same |= np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64))
            if not same.all():
                i = int(np.flatnonzero(~same)[0])
                sys.exit(f"{chip} {symbol}: {np.count_nonzero(~same)} of {count} differ; {x[i]!r} gives {got[i]!r}, expected {expected[i]!r}")

        # The example of the documentation.
        ptx = compile_module(options.opt, pipeline, chip, example)
        module = machine.module(ptx, "example")
        x = np.tile(np.arange(256, dtype=np.uint8), 4)
        y = np.zeros(1024, np.uint8)
        factor = np.float32(1.7)
        launch(machine, module, "scale", 1024, [machine.buffer(x, "x"), factor, machine.output(y, "y")])
        machine.clear()
        expected = narrow((decode("f8E4M3FN")[x].astype(np.float32) * factor).astype(np.float64), "f8E4M3FN")
        if (y != expected).any():
            sys.exit(f"{chip} example: {np.count_nonzero(y != expected)} of 1024 differ")
    print(f"{len(cases)} kernels on {len(CHIPS)} chips")


if __name__ == "__main__":
    main()
