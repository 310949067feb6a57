"""Builds instances of the device kernels the way the compiler does.

An instance is a kernel that passes structural constants to a function of the
device library. Wrapper (LLVM IR), library, opt -O1 and llc give PTX; ptxas, where
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
int g_write_grid(int t, int h, int d, int vd) { return writeGrid(t, h, d, vd); }
int g_prefill_rows(int g, int d, int w) { return prefillRows(g, d, w); }
int g_prefill_step() { return prefillStep; }
int g_prefill_columns(int g, int d) { return prefillColumns(g, d); }
int g_prefill_shared(int d, int vd, int c, int q, int w) { return prefillSharedBytes(d, vd, c, q, w); }
int g_prefill_warps(int a, int qt, int ct, int q, int k, int d, int vd, int p) { return prefillWarps(a, qt, ct, q, k, d, vd, p); }
int g_mla_columns(int h, int r, int q) { return mlaColumns(h, r, q); }
int g_mla_heads(int h, int r, int q) { return mlaHeadsPerCta(h, r, q); }
int g_mla_rows(int h, int t, int s, int q) { return chooseMlaRows(h, t, s, q); }
int g_mla_shared(int a, int ct, int l, int r, int c, int t, int s) { return mlaSharedBytes(a, ct, l, r, c, t, s); }
int g_latent_row(int ct, int l, int r) { return latentRowBytes(ct, l, r); }
int g_latent_write_grid(int t, int l, int r) { return latentWriteGrid(t, l, r); }
void g_mla_defaults(int a, int ct, int l, int r, int c, int *o) {
  MlaTuning t = mlaDefaults(a, ct, l, r, c);
  o[0] = t.tile; o[1] = t.stages;
}
const char *g_latent_problem(int ct, int l, int r, int p, long long ps, int ts) { return latentProblem(ct, l, r, p, ps, ts); }
const char *g_mla_problem(int a, int qt, int ct, int h, int l, int r, int rows, int t, int s, int st, int n) {
  return mlaProblem(a, qt, ct, h, l, r, rows, t, s, st, n);
}
int g_elementwise_grid(long long n) { return elementwiseGrid(n); }
int g_token_scaled_write_grid(int t, int h, int d, int vd) { return tokenScaledWriteGrid(t, h, d, vd); }
int g_write_grid_y(int h, int p) { return writeGridY(h, p); }
int g_cache_bytes(int c) { return cacheBytes(c); }
int g_columns(int g, int r, int d) { return columnsPerCta(g, r, d); }
int g_heads(int g, int r, int d) { return headsPerCta(g, r, d); }
int g_choose_rows(int g, int d, int t, int s) { return chooseRows(g, d, t, s); }
int g_row_blocks(int t, int s, int r) { return rowBlocks(t, s, r); }
int g_shared(int d, int vd, int e, int c, int q, int t, int s, int m, int o) { return dynamicSharedBytes(d, vd, e, c, q, t, s, m, o); }
long long g_partials(int x, int y, int c, int d, int n) { return partialsBytes(x, y, c, d, n); }
long long g_counters(int x, int y, int n) { return countersBytes(x, y, n); }
int g_grid_x(int q, int k, int r, int d) { return attentionGridX(q, k, r, d); }
int g_granule(int t, int p) { return splitGranule(t, p); }
int g_per_iteration(int d, int vd, int e, int t) { return kvBytesPerIteration(d, vd, e, t); }
int g_ctas(int a, int s) { return ctasPerSM(a, s); }
int g_ptx_version(int a) { return ptxVersion(a); }
const char *g_problem(int a, int qt, int ct, int q, int k, int d, int vd, int p, int r, int t, int s, int u, int st, int n, int w, int m, int o) {
  return attentionProblem(a, qt, ct, q, k, d, vd, p, r, t, s, u, st, n, w, m, o);
}
void g_defaults(int a, int d, int vd, int e, int c, int q, int p, int m, int token_scales, int *o) {
  AttentionTuning t = attentionDefaults(a, d, vd, e, c, q, p, m, token_scales);
  o[0] = t.tile; o[1] = t.stages; o[2] = t.unroll; o[3] = t.minCtasPerSM;
}
void g_prefill_splits(int a, int s, int c, int w, int x, int y, long long k, int *o) {
  SplitChoice p = choosePrefillSplits(a, s, c, w, x, y, k);
  o[0] = p.splitTokens; o[1] = p.numSplits;
}
void g_splits(int a, int s, int p, int t, int x, int y, long long k, int *o) {
  SplitChoice c = chooseSplits(a, s, p, t, x, y, k);
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
        for name in ("g_problem", "g_mla_problem", "g_latent_problem"):
            getattr(self.lib, name).restype = ctypes.c_char_p

    def __getattr__(self, name):
        return getattr(self.lib, "g_" + name)

    def tuning(self, arch, head_dim, columns, page, element_bytes=1, q_type=1, math=0, token_scales=0, v_head_dim=None):
        out = (ctypes.c_int * 4)()
        self.lib.g_defaults(arch, head_dim, v_head_dim or head_dim, element_bytes, columns, q_type, page, math, token_scales, out)
        return dict(tile=out[0], stages=out[1], unroll=out[2], min_ctas=out[3])

    def mla_tuning(self, v):
        out = (ctypes.c_int * 2)()
        self.lib.g_mla_defaults(v["arch"], v["cache_type"], v["latent_dim"], v["rope_dim"], self.columns_of(v), out)
        return dict(tile=out[0], stages=out[1])

    def columns_of(self, v):
        """Columns of a CTA for the constants of an attention instance."""
        if "latent_dim" in v:
            return self.lib.g_mla_columns(v["heads"], v["rows"], v["q_type"])
        if v.get("prefill"):
            return v["warps"] * self.lib.g_prefill_columns(v["q_heads"] // v["kv_heads"], value_dim(v))
        return self.lib.g_columns(v["q_heads"] // v["kv_heads"], v["rows"], value_dim(v))

    def shared_of(self, v):
        """Dynamic shared memory for the constants of an attention instance."""
        if "latent_dim" in v:
            return self.lib.g_mla_shared(*(v[k] for k in ("arch", "cache_type", "latent_dim", "rope_dim")), self.columns_of(v), v["tile"], v["stages"])
        if v.get("prefill"):
            columns = self.lib.g_prefill_columns(v["q_heads"] // v["kv_heads"], value_dim(v))
            return self.lib.g_prefill_shared(v["head_dim"], value_dim(v), columns, v["q_type"], v["warps"])
        return self.lib.g_shared(v["head_dim"], value_dim(v), self.lib.g_cache_bytes(v["cache_type"]), self.columns_of(v), v["q_type"],
                                 v["tile"], v["stages"], v["math"], v["token_scales"])

    def grid_of(self, v, rows, sequences):
        if "latent_dim" in v:
            per_cta = self.lib.g_mla_heads(v["heads"], v["rows"], v["q_type"])
            return -(-v["heads"] // per_cta), self.lib.g_row_blocks(rows, sequences, v["rows"]), v["num_splits"]
        return (self.lib.g_grid_x(v["q_heads"], v["kv_heads"], 1 if v.get("prefill") else v["rows"], value_dim(v)),
                self.lib.g_row_blocks(rows, sequences, v["rows"]), v["num_splits"])

    def problem_of(self, v):
        text = self.lib.g_problem(v["arch"], v["q_type"], v["cache_type"], v["q_heads"], v["kv_heads"], v["head_dim"],
                                  value_dim(v), v["page_size"], v["rows"], v["tile"], v["stages"], v["unroll"], v["split_tokens"],
                                  v["num_splits"], v["has_window"], v["math"], v["token_scales"])
        return text.decode() if text else None

    def choose_splits(self, *args, function="g_splits"):
        out = (ctypes.c_int * 2)()
        getattr(self.lib, function)(*args[:-1], ctypes.c_longlong(args[-1]), out)
        return out[0], out[1]


def value_dim(v):
    """The head dim of V and of outputs."""
    return v.get("v_head_dim", v["head_dim"])


class Layout:
    """Byte strides (page, token, head) of K and of V, and where V starts; `page_bytes` hold a page of either.

    pitch: bytes from row to row of K, where rows are longer than their codes; those of V are longer by as many.
    """

    def __init__(self, name, page, heads, dim, element_bytes=1, pitch=0, v_dim=None):
        v_dim = (v_dim or dim) * element_bytes
        dim *= element_bytes
        if pitch:
            dim, v_dim = pitch, v_dim + pitch - dim
        row, v_row = heads * dim, heads * v_dim
        self.name, self.pitch = f"{name} pitch {pitch}" if pitch else name, pitch
        self.v_offset, self.page_bytes = None, page * max(row, v_row)
        if name == "nhd":  # [page][token][head][dim], V of its own
            self.k, self.v = (page * row, row, dim), (page * v_row, v_row, v_dim)
        elif name == "hnd":
            self.k, self.v = (page * row, dim, page * dim), (page * v_row, v_dim, page * v_dim)
        elif name == "packed":  # [page][token][head][dim of K], then [head][dim of V]
            self.page_bytes = page * (row + v_row)
            self.k, self.v = (self.page_bytes, row + v_row, dim), (self.page_bytes, row + v_row, v_dim)
            self.v_offset = row
        elif name == "packed_head":  # [page][token][head][dims of K and V]
            self.page_bytes = page * (row + v_row)
            self.k = self.v = (self.page_bytes, row + v_row, dim + v_dim)
            self.v_offset = dim
        elif name == "mixed":  # K NHD with gaps, V HND
            self.k = (page * row + 64 * row, row + 32, dim)
            self.v = (page * v_row, v_dim, page * v_dim)
            self.page_bytes += 64 * row
        else:
            raise ValueError(name)


# Names of the activation types.
TYPES = ("f16", "bf16", "f32", "e4m3", "e5m2")
ATTENTION = [("q", "p"), ("k_pages", "p"), ("v_pages", "p"), ("page_table", "p"), ("lengths", "p"),
             ("query_start", "p"), ("out", "p"), ("lse", "p"), ("partials", "p"), ("counters", "p"),
             ("sinks", "p"), ("alibi_slopes", "p"), ("k_scales", "p"), ("v_scales", "p"),
             ("score_scale", "float"), ("output_scale", "float"), ("soft_cap", "float"), ("max_tokens", "i32"),
             ("max_sequences", "i32"), ("max_pages_per_sequence", "i32"), ("window", "i32")]
ATTENTION_CONSTANTS = [("arch", "i32"), ("q_type", "i32"), ("out_type", "i32"), ("cache_type", "i32"), ("q_heads", "i32"),
                       ("kv_heads", "i32"), ("head_dim", "i32"), ("page_size", "i32"),
                       ("k_page_stride", "i64"), ("k_token_stride", "i32"), ("k_head_stride", "i32"),
                       ("v_page_stride", "i64"), ("v_token_stride", "i32"), ("v_head_stride", "i32"),
                       ("tile", "i32"), ("stages", "i32"), ("unroll", "i32"), ("rows", "i32"),
                       ("has_window", "i32"), ("has_soft_cap", "i32"), ("has_sinks", "i32"), ("has_alibi", "i32"),
                       ("token_scales", "i32"), ("split_tokens", "i32"),
                       ("num_splits", "i32"), ("has_lse", "i32"), ("math", "i32"), ("v_head_dim", "i32")]
STRIDES = ("k_page_stride", "k_token_stride", "k_head_stride", "v_page_stride", "v_token_stride", "v_head_stride")
ROPE = [("rope_table", "p"), ("positions", "p")]
ROPE_CONSTANTS = [("rotary_dim", "i32"), ("rope_interleaved", "i32"), ("rope_positions", "i32")]
WRITE = [("k", "p"), ("v", "p"), ("k_pages", "p"), ("v_pages", "p"), ("slots", "p"), *ROPE, ("k_scale", "float"),
         ("v_scale", "float"), ("max_tokens", "i32"), ("num_slots", "i64")]
WRITE_CONSTANTS = [("arch", "i32"), ("in_type", "i32"), ("cache_type", "i32"), ("kv_heads", "i32"),
                   ("head_dim", "i32"), ("page_size", "i32"), ("k_page_stride", "i64"),
                   ("k_token_stride", "i32"), ("k_head_stride", "i32"), ("v_page_stride", "i64"),
                   ("v_token_stride", "i32"), ("v_head_stride", "i32"), ("k_scale_is_pow2", "i32"),
                   ("v_scale_is_pow2", "i32"), ("per_head", "i32"), *ROPE_CONSTANTS, ("v_head_dim", "i32")]

# The write that computes scales of tokens.
TOKEN_SCALED = [a for a in WRITE if a[0] not in ("k_scale", "v_scale")]
TOKEN_SCALED[5:5] = [("k_scales", "p"), ("v_scales", "p")]
TOKEN_SCALED_CONSTANTS = [c for c in WRITE_CONSTANTS if c[0] not in ("cache_type", "k_scale_is_pow2", "v_scale_is_pow2", "per_head")]
TOKEN_SCALED_CONSTANTS[-4:-4] = [("token_scales", "i32")]
# Its values: rows end in their scale, or side tensors have it.
INLINE, SIDE = 1, 2

NO_ROPE = dict(rotary_dim=0, rope_interleaved=0, rope_positions=0)
MLA = [("q", "p"), ("pages", "p"), ("page_table", "p"), ("lengths", "p"), ("query_start", "p"), ("out", "p"), ("lse", "p"),
       ("partials", "p"), ("counters", "p"), ("score_scale", "float"), ("output_scale", "float"), ("max_tokens", "i32"),
       ("max_sequences", "i32"), ("max_pages_per_sequence", "i32")]
MLA_CONSTANTS = [("arch", "i32"), ("q_type", "i32"), ("out_type", "i32"), ("cache_type", "i32"), ("heads", "i32"), ("latent_dim", "i32"),
                 ("rope_dim", "i32"), ("page_size", "i32"), ("page_stride", "i64"), ("token_stride", "i32"), ("tile", "i32"),
                 ("stages", "i32"), ("rows", "i32"), ("split_tokens", "i32"), ("num_splits", "i32"), ("has_lse", "i32")]
WRITE_LATENT = [("latent", "p"), ("rope", "p"), ("pages", "p"), ("slots", "p"), *ROPE, ("scale", "float"),
                ("max_tokens", "i32"), ("num_slots", "i64")]
WRITE_LATENT_CONSTANTS = [("arch", "i32"), ("in_type", "i32"), ("cache_type", "i32"), ("latent_dim", "i32"), ("rope_dim", "i32"),
                          ("page_size", "i32"), ("page_stride", "i64"), ("token_stride", "i32"), ("scale_is_pow2", "i32"),
                          *ROPE_CONSTANTS]
PREFILL = [a for a in ATTENTION if a[0] not in ("k_scales", "v_scales")]
PREFILL_CONSTANTS = [c for c in ATTENTION_CONSTANTS if c[0] not in ("tile", "stages", "unroll", "rows", "token_scales", "math")]
PREFILL_CONSTANTS.insert(-1, ("warps", "i32"))
ELEMENTWISE = {
    "kvcache_quantize": ([("in", "p"), ("out", "p"), ("scale", "float"), ("count", "i64")],
                         [("arch", "i32"), ("in_type", "i32"), ("cache_type", "i32")]),
    "kvcache_dequantize": ([("in", "p"), ("out", "p"), ("scale", "float"), ("count", "i64")],
                           [("arch", "i32"), ("cache_type", "i32"), ("out_type", "i32")]),
    "kvcache_merge_states": ([("a", "p"), ("lse_a", "p"), ("b", "p"), ("lse_b", "p"), ("out", "p"), ("lse", "p"), ("rows", "i32")],
                             [("arch", "i32"), ("type", "i32"), ("head_dim", "i32")]),
    "kvcache_copy_pages": ([("k_pages", "p"), ("v_pages", "p"), ("pairs", "p"), ("num_pages", "i64")] +
                           [(f"{side}_{what}_stride", "i64" if what == "page" else "i32") for side in "kv"
                            for what in ("page", "token", "head")],
                           [(name, "i32") for name in ("arch", "kv_heads", "page_size", "k_row_bytes", "v_row_bytes")]),
}


def wrapper(name, function, arguments, constants, values, min_ctas, scales=(), head=None, threads=128):
    """LLVM IR of a kernel that calls `function` with constants.

    With `head`, a pair of a block dimension and a divisor, the arguments `scales` come
    as one for each KV head, and the kernel picks that of its head: what the
    compiler does for per-head scales.
    """
    kinds, heads = dict(p="ptr"), values["kv_heads"] if head else 1
    declared = ", ".join(kinds.get(t, t) for _, t in arguments + constants)
    given, code = [], ""
    if head:
        code = (f"  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.{head[0]}()\n"
                f"  %head = udiv i32 %block, {head[1]}\n")
    for n, t in arguments:
        if not head or n not in scales:
            given.append((n, t))
            continue
        given += [(f"{n}.{h}", t) for h in range(heads)]
        code += f"  %{n}.s0 = fadd {t} %{n}.0, -0.0\n"
        for h in range(1, heads):
            code += (f"  %{n}.c{h} = icmp eq i32 %head, {h}\n"
                     f"  %{n}.s{h} = select i1 %{n}.c{h}, {t} %{n}.{h}, {t} %{n}.s{h - 1}\n")
    params = ", ".join(f"{'ptr addrspace(1)' if t == 'p' else t} %{n}" for n, t in given)
    casts = "".join(f"  %{n}.g = addrspacecast ptr addrspace(1) %{n} to ptr\n" for n, t in arguments if t == "p")
    actual = [f"ptr %{n}.g" if t == "p" else f"{t} %{n}.s{heads - 1}" if head and n in scales else f"{t} %{n}"
              for n, t in arguments]
    actual += [f"{t} {int(values[n])}" for n, t in constants]
    return (f'target triple = "nvptx64-nvidia-cuda"\n'
            f"declare void @{function}({declared})\n"
            f"declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()\ndeclare i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()\n"
            f"define ptx_kernel void @{name}({params}) #0 {{\n{casts}{code}"
            f"  call void @{function}({', '.join(actual)})\n  ret void\n}}\n"
            f'attributes #0 = {{ "nvvm.maxntid"="{threads}" "nvvm.minctasm"="{min_ctas}" }}\n')


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
        run(tool("opt"), f"--internalize-public-api-list={keep}", "-passes=internalize,default<O1>",
            f"-mcpu=sm_{arch}", base + ".linked.bc", "-o", base + ".opt.bc")
        run(tool("llc"), "-O1", f"-mcpu=sm_{arch}", f"-mattr=+ptx{self.geometry.ptx_version(arch)}", base + ".opt.bc", "-o", base + ".ptx")
        self.done[key] = base + ".ptx"
        return self.done[key]

    def attention(self, name, **values):
        """LLVM IR of an attention instance; unset tuning comes from Geometry.h."""
        v = dict(cache_type=0, rows=1, has_window=0, has_soft_cap=0, has_sinks=0, has_alibi=0, token_scales=0, has_lse=1, num_splits=1, math=0)
        v.update(values)
        v.setdefault("out_type", v["q_type"])
        v["v_head_dim"] = value_dim(v)
        tuning = self.geometry.tuning(v["arch"], v["head_dim"], self.geometry.columns_of(v), v["page_size"],
                                      self.geometry.cache_bytes(v["cache_type"]), v["q_type"], v["math"], v["token_scales"], v["v_head_dim"])
        min_ctas = v.pop("min_ctas", tuning.pop("min_ctas"))
        for key in ("tile", "stages", "unroll"):
            v.setdefault(key, tuning[key])
        v.setdefault("split_tokens", self.geometry.granule(v["tile"], v["page_size"]))
        layout = v.pop("layout")
        v.update(zip(("k_page_stride", "k_token_stride", "k_head_stride"), layout.k))
        v.update(zip(("v_page_stride", "v_token_stride", "v_head_stride"), layout.v))
        problem = self.geometry.problem_of(v)
        if problem:
            raise ValueError(f"Geometry.h refuses {v}: {problem}")
        head = None
        if v.setdefault("per_head", 0):
            head = ("x", self.geometry.grid_of(v, 1, 1)[0] // v["kv_heads"])
        function, arguments, constants = "kvcache_paged_attention", ATTENTION, ATTENTION_CONSTANTS
        if v.setdefault("runtime_strides", 0):
            function += "_strided"
            arguments = arguments + [c for c in constants if c[0] in STRIDES]
            constants = [c for c in constants if c[0] not in STRIDES]
        text = wrapper(name, function, arguments, constants, v, min_ctas, ("score_scale", "output_scale"), head)
        return (name, text), v

    def prefill(self, name, **values):
        """LLVM IR of a prefill instance, and its constants; `rows` are those of a CTA."""
        v = dict(cache_type=0, has_window=0, has_soft_cap=0, has_sinks=0, has_alibi=0, has_lse=1, per_head=0, runtime_strides=0,
                 num_splits=1, split_tokens=64)
        v.update(values)
        v.setdefault("out_type", v["q_type"])
        v["v_head_dim"] = value_dim(v)
        g, group = self.geometry, v["q_heads"] // v["kv_heads"]
        v.setdefault("warps", g.prefill_warps(v["arch"], v["q_type"], v["cache_type"], v["q_heads"], v["kv_heads"], v["head_dim"],
                                              v["v_head_dim"], v["page_size"]))
        if not v["warps"]:
            raise ValueError(f"Geometry.h refuses {v}")
        layout = v.pop("layout")
        v.update(zip(STRIDES, layout.k + layout.v))
        v.update(prefill=1, rows=g.prefill_rows(group, v["v_head_dim"], v["warps"]), tile=g.prefill_step(), stages=2, unroll=1)
        ctas = g.ctas(v["arch"], g.shared_of(v))
        return (name, wrapper(name, "kvcache_prefill", PREFILL, PREFILL_CONSTANTS, v, min(ctas, 8 // v["warps"]), threads=32 * v["warps"])), v

    def latent(self, v):
        """Strides of a latent cache, contiguous unless given, and what Geometry.h has against it."""
        g = self.geometry
        v.setdefault("token_stride", g.latent_row(v["cache_type"], v["latent_dim"], v["rope_dim"]))
        v.setdefault("page_stride", v["page_size"] * v["token_stride"])
        if problem := g.latent_problem(v["cache_type"], v["latent_dim"], v["rope_dim"], v["page_size"],
                                       ctypes.c_longlong(v["page_stride"]), v["token_stride"]):
            raise ValueError(f"Geometry.h refuses {v}: {problem.decode()}")

    def mla(self, name, **values):
        """LLVM IR of an MLA instance; unset tuning comes from Geometry.h."""
        v = dict(cache_type=0, latent_dim=512, rope_dim=64, rows=1, has_lse=1, num_splits=1, warps=8)
        v.update(values)
        v["head_dim"] = v["latent_dim"]  # of the output
        v.setdefault("out_type", v["q_type"])
        self.latent(v)
        for key, value in self.geometry.mla_tuning(v).items():
            v.setdefault(key, value)
        v.setdefault("split_tokens", v["tile"])
        if problem := self.geometry.mla_problem(*(v[k] for k in ("arch", "q_type", "cache_type", "heads", "latent_dim", "rope_dim",
                                                                 "rows", "tile", "stages", "split_tokens", "num_splits"))):
            raise ValueError(f"Geometry.h refuses {v}: {problem.decode()}")
        return (name, wrapper(name, "kvcache_mla_attention", MLA, MLA_CONSTANTS, v, 1, threads=256)), v

    def write_latent(self, name, **values):
        v = dict(NO_ROPE, cache_type=0, latent_dim=512, rope_dim=64, scale_is_pow2=0) | values
        self.latent(v)
        return (name, wrapper(name, "kvcache_write_latent", WRITE_LATENT, WRITE_LATENT_CONSTANTS, v, 1)), v

    def elementwise(self, name, function, **values):
        arguments, constants = ELEMENTWISE[function]
        return (name, wrapper(name, function, arguments, constants, values, 1))

    def write(self, name, **values):
        v = dict(NO_ROPE, cache_type=0, per_head=0, v_head_dim=value_dim(values)) | values
        layout = v.pop("layout")
        v.update(zip(("k_page_stride", "k_token_stride", "k_head_stride"), layout.k))
        v.update(zip(("v_page_stride", "v_token_stride", "v_head_stride"), layout.v))
        if v.get("token_scales"):
            return (name, wrapper(name, "kvcache_write_token_scaled", TOKEN_SCALED, TOKEN_SCALED_CONSTANTS, v, 1)), v
        return (name, wrapper(name, "kvcache_write", WRITE, WRITE_CONSTANTS, v, 1, ("k_scale", "v_scale"),
                              ("y", 1) if v["per_head"] else None)), v


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
