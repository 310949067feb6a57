"""Builds instances of the device kernels the way the compiler does.

An instance is a kernel that passes structural constants to a function of the
device library. Wrapper (LLVM IR), library, opt -O3 and llc give PTX; ptxas, where
there is one, a cubin.
"""
import ctypes
import os
import re
import shutil
import subprocess
import tempfile


def tool(name):
    """Path of an LLVM 22 tool: $KVCACHE_LLVM_BIN, else the -22 name in PATH."""
    folder = os.environ.get("KVCACHE_LLVM_BIN")
    return os.path.join(folder, name) if folder else name + "-22"


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    # A loop that opt cannot unroll as asked is a warning there, and a structure
    # that does not fold here.
    if done.returncode or "warning" in done.stderr:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr.strip()}")
    return done.stdout


class Geometry:
    """kernels/Geometry.h, compiled by the host compiler: no second copy of it."""

    SOURCE = r"""
#include "Geometry.h"
using namespace kvcache::kernels;
extern "C" {
int g_write_grid(int t, int h, int d) { return writeGrid(t, h, d); }
int g_shared(int d, int g, int t, int s) { return dynamicSharedBytes(d, g, t, s); }
long long g_partials(int t, int q, int k, int d, int n) { return partialsBytes(t, q, k, d, n); }
long long g_counters(int t, int q, int k, int n) { return countersBytes(t, q, k, n); }
int g_grid_x(int q, int k) { return attentionGridX(q, k); }
int g_granule(int t, int p) { return splitGranule(t, p); }
int g_per_iteration(int d, int t) { return kvBytesPerIteration(d, t); }
int g_ctas(int a, int s) { return ctasPerSM(a, s); }
int g_flight(int a, int d, int g, int t, int s) { return bytesInFlight(a, d, g, t, s); }
int g_ptx_version(int a) { return ptxVersion(a); }
int g_legal(int q, int k, int d, int p, int t, int s, int u, int st, int n) { return attentionIsLegal(q, k, d, p, t, s, u, st, n); }
void g_defaults(int a, int d, int g, int p, int *o) {
  AttentionTuning t = attentionDefaults(a, d, g, p);
  o[0] = t.tile; o[1] = t.stages; o[2] = t.unroll; o[3] = t.minCtasPerSM;
}
void g_splits(int a, int q, int k, int d, int p, int t, int s, int rows, int pages, int *o) {
  SplitChoice c = chooseSplits(a, q, k, d, p, t, s, rows, pages);
  o[0] = c.splitTokens; o[1] = c.numSplits;
}
}
"""

    def __init__(self, kernels_dir, work):
        source, library = os.path.join(work, "geometry.cpp"), os.path.join(work, "geometry.so")
        with open(source, "w") as f:
            f.write(self.SOURCE)
        run(tool("clang++"), "-std=c++17", "-O1", "-shared", "-fPIC", "-I", kernels_dir, source, "-o", library)
        self.lib = ctypes.CDLL(library)
        self.lib.g_partials.restype = self.lib.g_counters.restype = ctypes.c_longlong

    def __getattr__(self, name):
        return getattr(self.lib, "g_" + name)

    def tuning(self, arch, head_dim, group, page):
        out = (ctypes.c_int * 4)()
        self.lib.g_defaults(arch, head_dim, group, page, out)
        return dict(tile=out[0], stages=out[1], unroll=out[2], min_ctas=out[3])

    def choose_splits(self, *args):
        out = (ctypes.c_int * 2)()
        self.lib.g_splits(*args, out)
        return out[0], out[1]


class Layout:
    """Byte strides (page, token, head) of K and of V, and where V starts."""

    def __init__(self, name, page, heads, dim):
        row, self.name = heads * dim, name
        if name == "nhd":  # [page][token][head][dim], V of its own
            self.k = self.v = (page * row, row, dim)
            self.v_offset, self.page_bytes = None, page * row
        elif name == "hnd":
            self.k = self.v = (page * row, dim, page * dim)
            self.v_offset, self.page_bytes = None, page * row
        elif name == "packed":  # [page][token][2][head][dim]
            self.k = self.v = (2 * page * row, 2 * row, dim)
            self.v_offset, self.page_bytes = row, 2 * page * row
        elif name == "packed_head":  # [page][token][head][2 dim]
            self.k = self.v = (2 * page * row, 2 * row, 2 * dim)
            self.v_offset, self.page_bytes = dim, 2 * page * row
        elif name == "mixed":  # K NHD with gaps, V HND
            self.k = (page * row + 64 * row, row + 32, dim)
            self.v = (page * row, dim, page * dim)
            self.v_offset, self.page_bytes = None, page * row + 64 * row
        else:
            raise ValueError(name)


ATTENTION = [("q", "p"), ("k_pages", "p"), ("v_pages", "p"), ("page_table", "p"), ("lengths", "p"),
             ("query_start", "p"), ("out", "p"), ("lse", "p"), ("partials", "p"), ("counters", "p"),
             ("score_scale", "float"), ("output_scale", "float"), ("max_tokens", "i32"),
             ("max_sequences", "i32"), ("max_pages_per_sequence", "i32")]
ATTENTION_CONSTANTS = [("arch", "i32"), ("q_type", "i32"), ("cache_type", "i32"), ("q_heads", "i32"),
                       ("kv_heads", "i32"), ("head_dim", "i32"), ("page_size", "i32"),
                       ("k_page_stride", "i64"), ("k_token_stride", "i32"), ("k_head_stride", "i32"),
                       ("v_page_stride", "i64"), ("v_token_stride", "i32"), ("v_head_stride", "i32"),
                       ("tile", "i32"), ("stages", "i32"), ("unroll", "i32"), ("split_tokens", "i32"),
                       ("num_splits", "i32"), ("has_lse", "i32")]
WRITE = [("k", "p"), ("v", "p"), ("k_pages", "p"), ("v_pages", "p"), ("slots", "p"), ("k_scale", "float"),
         ("v_scale", "float"), ("max_tokens", "i32"), ("num_slots", "i64")]
WRITE_CONSTANTS = [("arch", "i32"), ("in_type", "i32"), ("cache_type", "i32"), ("kv_heads", "i32"),
                   ("head_dim", "i32"), ("page_size", "i32"), ("k_page_stride", "i64"),
                   ("k_token_stride", "i32"), ("k_head_stride", "i32"), ("v_page_stride", "i64"),
                   ("v_token_stride", "i32"), ("v_head_stride", "i32"), ("k_scale_is_pow2", "i32"),
                   ("v_scale_is_pow2", "i32")]


def wrapper(name, function, arguments, constants, values, min_ctas):
    """LLVM IR of a kernel that calls `function` with constants."""
    kinds = dict(p="ptr")
    declared = ", ".join(kinds.get(t, t) for _, t in arguments + constants)
    params = ", ".join(f"{'ptr addrspace(1)' if t == 'p' else t} %{n}" for n, t in arguments)
    casts = "".join(f"  %{n}.g = addrspacecast ptr addrspace(1) %{n} to ptr\n" for n, t in arguments if t == "p")
    actual = [f"ptr %{n}.g" if t == "p" else f"{t} %{n}" for n, t in arguments]
    actual += [f"{t} {int(values[n])}" for n, t in constants]
    return (f'target triple = "nvptx64-nvidia-cuda"\n'
            f"declare void @{function}({declared})\n"
            f"define ptx_kernel void @{name}({params}) #0 {{\n{casts}"
            f"  call void @{function}({', '.join(actual)})\n  ret void\n}}\n"
            f'attributes #0 = {{ "nvvm.maxntid"="128" "nvvm.minctasm"="{min_ctas}" }}\n')


class Builder:
    """Compiles instances into a work folder; same constants, same file."""

    def __init__(self, bitcode, kernels_dir, work=None):
        self.bitcode, self.folder = bitcode, work or tempfile.mkdtemp(prefix="kvcache-kernels-")
        os.makedirs(self.folder, exist_ok=True)
        self.geometry = Geometry(kernels_dir, self.folder)
        self.done = {}

    def ptx(self, kernels, arch):
        """`kernels`: list of (name, LLVM IR). One PTX module with all of them."""
        key = (arch,) + tuple(kernels)
        if key in self.done:
            return self.done[key]
        base = os.path.join(self.folder, f"module{len(self.done)}")
        inputs = []
        for n, (_, text) in enumerate(kernels):
            inputs.append(f"{base}.{n}.ll")
            with open(inputs[-1], "w") as f:
                f.write(text)
        keep = ",".join(name for name, _ in kernels)
        run(tool("llvm-link"), *inputs, "-o", base + ".bc")
        run(tool("llvm-link"), base + ".bc", "--only-needed", self.bitcode, "-o", base + ".linked.bc")
        run(tool("opt"), f"--internalize-public-api-list={keep}", "-passes=internalize,default<O3>",
            f"-mcpu=sm_{arch}", base + ".linked.bc", "-o", base + ".opt.bc")
        run(tool("llc"), "-O3", f"-mcpu=sm_{arch}", f"-mattr=+ptx{self.geometry.ptx_version(arch)}", base + ".opt.bc", "-o", base + ".ptx")
        self.done[key] = base + ".ptx"
        return self.done[key]

    def attention(self, name, **values):
        """LLVM IR of an attention instance; unset tuning comes from Geometry.h."""
        v = dict(values)
        group = v["q_heads"] // v["kv_heads"]
        tuning = self.geometry.tuning(v["arch"], v["head_dim"], group, v["page_size"])
        min_ctas = v.pop("min_ctas", tuning.pop("min_ctas"))
        for key in ("tile", "stages", "unroll"):
            v.setdefault(key, tuning[key])
        v.setdefault("cache_type", 0)
        v.setdefault("has_lse", 1)
        v.setdefault("num_splits", 1)
        v.setdefault("split_tokens", self.geometry.granule(v["tile"], v["page_size"]))
        layout = v.pop("layout")
        v.update(zip(("k_page_stride", "k_token_stride", "k_head_stride"), layout.k))
        v.update(zip(("v_page_stride", "v_token_stride", "v_head_stride"), layout.v))
        legal = self.geometry.legal(v["q_heads"], v["kv_heads"], v["head_dim"], v["page_size"], v["tile"],
                                    v["stages"], v["unroll"], v["split_tokens"], v["num_splits"])
        if not legal:
            raise ValueError(f"Geometry.h refuses {v}")
        text = wrapper(name, "kvcache_paged_attention", ATTENTION, ATTENTION_CONSTANTS, v, min_ctas)
        return (name, text), v

    def write(self, name, **values):
        v = dict(cache_type=0, **values)
        layout = v.pop("layout")
        v.update(zip(("k_page_stride", "k_token_stride", "k_head_stride"), layout.k))
        v.update(zip(("v_page_stride", "v_token_stride", "v_head_stride"), layout.v))
        return (name, wrapper(name, "kvcache_write", WRITE, WRITE_CONSTANTS, v, 1)), v


def ptxas_path():
    """ptxas: $PTXAS, else PATH, else the CUDA toolkit's usual place; or None."""
    for path in (os.environ.get("PTXAS"), shutil.which("ptxas"), "/usr/local/cuda/bin/ptxas"):
        if path and os.path.exists(path):
            return path
    return None


def cubin(ptx, arch, out):
    """Assembles PTX; returns {kernel: dict of registers, spills, stack}."""
    done = subprocess.run([ptxas_path(), "-v", "-O3", f"-arch=sm_{arch}", ptx, "-o", out], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ptxas failed:\n{done.stderr}")
    report, name = {}, None
    for line in done.stderr.splitlines():
        if m := re.search(r"Function properties for (\w+)", line):
            name = m[1]
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            report[name] = dict(stack=int(m[1]), spill_stores=int(m[2]), spill_loads=int(m[3]))
        elif m := re.search(r"Used (\d+) registers", line):
            report[name]["registers"] = int(m[1])
    return report
