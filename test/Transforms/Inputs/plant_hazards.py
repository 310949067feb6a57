"""Plants each kind of capture hazard into an imported graph, one by one and
then all together, and looks whether the pass reports it at the planted line."""

import re
import subprocess
import sys

KERNEL = """  gpu.module @planted_kernels {
    gpu.func @kernel(%x: f32) kernel {
      gpu.return
    }
  }
  func.func private @planted_opaque()
  func.func @planted_scalar() -> f32 {
    %c = arith.constant 1.0 : f32
    return %c : f32
  }
"""

# What stands in front of the hazard, and the hazard's own line.
HAZARDS = {
    "host-read": ("%hr_i = arith.constant 0 : index\n",
                  "%hr = tensor.extract %arg15[%hr_i] : tensor<?xi64>\n"),
    "synchronization": ("", "gpu.wait\n"),
    "allocation": ("", "%al = memref.alloc() : memref<8xf32>\n"),
    "live-geometry": ("%lg_z = arith.constant 0 : index\n%lg_1 = arith.constant 1 : index\n"
                      "%lg_f = arith.constant 1.0 : f32\n"
                      "%lg_d = tensor.dim %arg14, %lg_z : tensor<?xi64>\n",
                      "gpu.launch_func @planted_kernels::@kernel blocks in (%lg_d, %lg_1, %lg_1)"
                      " threads in (%lg_1, %lg_1, %lg_1) args(%lg_f : f32)\n"),
    "control-flow": ("%cf_z = arith.constant 0 : index\n%cf_1 = arith.constant 1 : index\n"
                     "%cf_d = tensor.dim %arg14, %cf_z : tensor<?xi64>\n",
                     "scf.for %cf_i = %cf_z to %cf_d step %cf_1 {\n}\n"),
    "opaque-call": ("", "func.call @planted_opaque() : () -> ()\n"),
    "host-scalar": ("%hs_1 = arith.constant 1 : index\n",
                    "gpu.launch_func @planted_kernels::@kernel blocks in (%hs_1, %hs_1, %hs_1)"
                    " threads in (%hs_1, %hs_1, %hs_1) args(%planted_scalar : f32)\n"),
    "unstable-address": ("%ua_q = \"foreign.buffer\"() : () -> memref<8x4x64xbf16>\n"
                         "%ua_c = kvcache.get_cache @layer1 : !kvcache.cache<2 x 64 x f8E4M3FN>\n",
                         "kvcache.paged_attention %ua_q over %ua_c outs(%ua_q) {softmax_scale = 1.25e-01 : f64}"
                         " : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>\n"),
}


def verify(text):
    result = subprocess.run(
        ["kvcache-opt", "--allow-unregistered-dialect", "--mlir-print-op-on-diagnostic=false",
         "--kvcache-verify-capturable", "-o", "/dev/null", "-"],
        input=text, capture_output=True, text=True)
    return re.findall(r"<stdin>:(\d+):\d+: error: .*\((\S+)\)", result.stderr), result


def plant(graph, hazards):
    """The graph with the hazards behind its first attention, and their lines."""
    lines = graph.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if "kvcache.paged_attention" in line) + 1
    text, planted = "".join(lines[:at]), {}
    for kind in hazards:
        before, op = HAZARDS[kind]
        text += before
        planted[kind] = text.count("\n") + 1
        text += op
    text += "".join(lines[at:])
    # The scalar is one more argument of the function.
    grown = text.replace("%arg15: tensor<?xi64>)", "%arg15: tensor<?xi64>, %planted_scalar: f32)")
    assert grown != text
    grown = grown.replace("module {", "module attributes {gpu.container_module} {", 1)
    # Declarations go behind everything, so that lines stay where they are.
    end = grown.rstrip().rindex("}")
    return grown[:end] + KERNEL + grown[end:], planted


def main():
    with open(sys.argv[1]) as file:
        graph = file.read()
    for kind in HAZARDS:
        text, planted = plant(graph, [kind])
        found, result = verify(text)
        if found == [(str(planted[kind]), kind)]:
            print(f"{kind}: found at the planted op")
        else:
            sys.exit(f"{kind}: planted in line {planted[kind]}, reported {found}\n{result.stderr}")
    unbounded, _ = re.subn(r", num_pages = \d+ : i64", "", graph)
    found, result = verify(unbounded)
    ops = [i + 1 for i, line in enumerate(unbounded.splitlines())
           if "kvcache.write" in line or "kvcache.paged_attention" in line]
    if found == [(str(line), "unbounded") for line in ops]:
        print("unbounded: found at the planted op")
    else:
        sys.exit(f"unbounded: expected at lines {ops}, reported {found}\n{result.stderr}")
    text, planted = plant(graph, HAZARDS)
    found, result = verify(text)
    if sorted(kind for _, kind in found) != sorted(HAZARDS):
        sys.exit(f"together: {found}\n{result.stderr}")
    print(f"all in one run: {len(found)} hazards")


main()
