#!/usr/bin/env python3
"""Compares the PTX machine with a card, opcode by opcode.

Every opcode that the given PTX files use becomes small kernels around instructions taken from them: random bits in,
the instruction, its results out. They run on the PTX machine and on the device; results must be the same bits, except
where PTX leaves them open (`.approx`, the order of sums in mma), where they must be close. Where plain Python can
compute an opcode exactly, the machine must give that answer too.

  --device=cuda  a card, through the driver        --device=sim  the machine in another order (the dry run)

Needs nothing but Python. Prints a table and, with --json, the numbers.
"""
import argparse
import ctypes as c
import json
import math
import random
import re
import struct
import sys
import time

THREADS, BLOCKS = 128, 4
LANES = THREADS * BLOCKS
STAGED = 16  # bytes of shared memory for each thread
WIDTH = {"r": 32, "rd": 64, "rs": 16, "p": 1, "f": 32, "fd": 64}
# Nothing to compare: control flow and waits have no result, parameters and addresses are the device's own.
INCOMPARABLE = ("bra", "ret", "exit", "bar.", "barrier.", "ld.param", "cp.async.commit", "cp.async.wait", "cvta", "fence",
                "membar", "griddepcontrol")
FLOATS = {"f32": (8, 23), "f16": (5, 10), "bf16": (8, 7)}
# PTX ISA: the largest error of an approximation, here between two of them: ulps, or absolute.
CLOSE = {"ex2": ("ulp", 6), "rcp": ("ulp", 3), "rsqrt": ("ulp", 6), "lg2": ("abs", 2.0**-20), "tanh": ("abs", 2.0**-9),
         "mma": ("abs", 2.0**-14)}


class Instruction:
    def __init__(self, text):
        self.text = text
        self.opcode, _, rest = text.partition(" ")
        self.operands = [o.strip() for o in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)]
        self.parts = self.opcode.split(".")
        types = [p for p in self.parts if re.fullmatch(r"(f16x2|bf16x2|e4m3x2|e5m2x2|[bsuf]\d+|bf16|pred)", p)]
        self.target_type = types[0] if types and self.parts[0] == "cvt" else types[-1] if types else ""
        self.source_type = types[-1] if types else ""

    def comparable(self):
        names = any(re.match(r"[A-Za-z_$]", o) for o in self.operands)  # of variables: addresses
        return bool(self.operands) and not names and not self.opcode.startswith(INCOMPARABLE)

    def registers(self, operand):
        return re.findall(r"%[a-z]+\d+", operand)

    def key(self):
        """Instructions of one key are tests of one thing: opcode and kinds of operands, and the immediates of those
        whose meaning is in them."""
        kinds = [re.sub(r"%([a-z]+)\d+", r"%\1", o) for o in self.operands]
        if self.parts[0] not in ("lop3", "shfl", "prmt", "bfe", "shf"):
            kinds = [k if "%" in k else "#" for k in kinds]
        return self.opcode + " " + ",".join(kinds)


def instructions(text):
    # Inline assembly has registers with names of its own.
    local = {}
    for kind, names in re.findall(r"\.reg\s+\.(\w+)\s+([^%;<]+);", text):
        prefix = {"pred": "p", "16": "rs", "32": "r", "64": "rd"}["pred" if kind == "pred" else kind[1:]]
        for name in names.split(","):
            local[name.strip()] = f"%{prefix}{9000 + len(local)}"
    for line in text.split("\n"):
        line = re.sub(r"\s+", " ", line.split("//")[0]).strip()
        for part in re.sub(r"^[{}]|[{}]$", "", line).split(";")[:-1] if line.endswith(("; }", ";")) else []:
            part = re.sub(r"^(@!?%\w+ |\$?\w+: )", "", part.strip())
            if re.match(r"[a-z]", part):
                opcode, _, operands = part.partition(" ")
                yield Instruction(opcode + " " + re.sub(r"(?<![%\w.])[A-Za-z_]\w*", lambda m: local.get(m[0], m[0]), operands))


def chip_of(text):
    return re.search(r"\.target\s+(sm_\w+)", text).group(1)


def collect(texts, most):
    """By chip the header and up to `most` instructions of each key; all opcodes, and those with nothing to compare."""
    chips, opcodes, incomparable = {}, set(), set()
    for text in texts:
        header = "\n".join(l for l in text.split("\n") if re.match(r"\.(version|target|address_size)", l))
        entry = chips.setdefault(chip_of(text), (header, {}))[1]
        for found in instructions(text):
            (opcodes if found.comparable() else incomparable).add(found.opcode)
            known = entry.setdefault(found.key(), []) if found.comparable() else []
            if len(known) < most and found.text not in [k.text for k in known]:
                known.append(found)
    return chips, opcodes, sorted(incomparable - opcodes)


class Test:
    """A kernel: 8 bytes for each source register of each thread in, 8 for each result out."""

    def __init__(self, number, instruction):
        self.name, self.instruction = f"t{number}", instruction
        i, self.lines, self.sources, self.results = instruction, [], [], []
        self.kind, base = "register", i.parts[0]
        memory = next((o for o in i.operands if o.startswith("[")), None)
        if base == "atom" or base == "red":
            self.kind = "sorted"
        if memory:
            self.memory(base, memory)
        else:
            targets = i.registers(i.operands[0])
            for operand in i.operands[1:]:
                self.sources += [r for r in i.registers(operand) if r not in self.sources]
            self.load_sources()
            self.lines.append(i.text + ";")
            self.store([(t, None) for t in targets])

    def emit(self, line):
        self.lines.append(line)

    def load_sources(self):
        for slot, register in enumerate(self.sources):
            kind = re.match(r"%([a-z]+)", register).group(1)
            address = f"[%in+{8 * slot}]"
            mask = self.instruction.parts[0] in ("shfl", "vote", "match", "redux") and \
                register in self.instruction.operands[-1:]
            if kind == "p":
                self.emit(f"ld.global.u32 %x0, {address};\n\tand.b32 %x0, %x0, 1;\n\tsetp.ne.b32 {register}, %x0, 0;")
            elif mask:
                self.emit(f"mov.b32 {register}, -1;")
            else:
                self.emit(f"ld.global.b{WIDTH[kind]} {register}, {address};")
            # Division by zero is left open.
            if self.instruction.parts[0] in ("div", "rem") and register == self.instruction.operands[2] and \
                    not self.instruction.source_type.startswith("f"):
                self.emit(f"or.b{WIDTH[kind]} {register}, {register}, 1;")

    def store(self, results):
        for slot, (register, _) in enumerate(results):
            kind = re.match(r"%([a-z]+)", register).group(1)
            if kind == "p":
                self.emit(f"selp.b32 %x0, 1, 0, {register};\n\tst.global.b32 [%out+{8 * slot}], %x0;")
            else:
                self.emit(f"st.global.b{WIDTH[kind]} [%out+{8 * slot}], {register};")
            self.results.append(WIDTH[kind])

    def memory(self, base, memory):
        i = self.instruction
        data = [r for o in i.operands if not o.startswith("[") for r in i.registers(o)]
        shared = "shared" in i.parts
        stage = "ld.global.v4.u32 {%x0,%x1,%x2,%x3}, [%in];\n\tst.shared.v4.u32 [%sh], {%x0,%x1,%x2,%x3};\n\tbar.sync 0;"
        if base in ("ld", "ldu", "ldmatrix"):
            width = max([WIDTH[re.match(r"%([a-z]+)", r).group(1)] for r in data])
            if shared:  # of another thread's bytes
                self.emit(stage)
                self.emit("mad.lo.u32 %x0, %me, 5, 1;\n\tand.b32 %x0, %x0, 127;\n\tshl.b32 %x0, %x0, 4;")
                self.emit("add.u32 %x0, %x0, %shbase;")
            self.sources = ["%x0", "%x2"]  # 16 bytes in
            address = ("[%x0]" if "[%rd" not in memory else "[%xd]") if shared else "[%in]"
            if address == "[%xd]":
                self.emit("cvt.u64.u32 %xd, %x0;")
            self.emit(i.text.replace(memory, address) + ";")
            self.store([(r, width) for r in data])
        elif base == "st":
            self.sources = data
            self.load_sources()
            if shared:
                self.emit("mov.b32 %x0, 0;\n\tst.shared.v4.u32 [%sh], {%x0,%x0,%x0,%x0};")
                self.emit(i.text.replace(memory, "[%sh]") + ";\n\tbar.sync 0;")
                self.emit("ld.shared.v4.u32 {%x0,%x1,%x2,%x3}, [%sh];\n\tst.global.v4.u32 [%out], {%x0,%x1,%x2,%x3};")
            else:
                self.emit(i.text.replace(memory, "[%out]") + ";")
            self.results = [64, 64]
        elif base == "cp":
            self.sources = ["%x0", "%x2"]
            sizes = i.registers(",".join(i.operands[2:]))
            for register in sizes:  # bytes that are read; the rest is zero
                self.emit(f"and.b32 {register}, %me, 1;\n\tshl.b32 {register}, {register}, 4;")
            text = i.text.replace(i.operands[0], "[%sh]", 1).replace(i.operands[1], "[%in]", 1)
            self.emit(text + ";\n\tcp.async.commit_group;\n\tcp.async.wait_group 0;\n\tbar.sync 0;")
            self.emit("ld.shared.v4.u32 {%x0,%x1,%x2,%x3}, [%sh];\n\tst.global.v4.u32 [%out], {%x0,%x1,%x2,%x3};")
            self.results = [64, 64]
        else:  # atom: all threads on one word, behind the results
            target, *values = data
            self.emit("mov.b32 %x0, 999;")
            for register in values:
                self.emit(f"mov.b{WIDTH[re.match(r'%([a-z]+)', register).group(1)]} {register}, 999;")
            self.emit(i.text.replace(memory, "[%word]") + ";")
            self.store([(target, None)])

    def text(self):
        names = sorted({r for l in self.lines for r in re.findall(r"%(?:r|rd|rs|p|f|fd)\d+", l)})
        registers = "".join(f"\t.reg .{'pred' if k == 'p' else 'b%d' % WIDTH[k]} {n};\n"
                            for n in names for k in [re.match(r"%([a-z]+)", n).group(1)])
        body = "".join(f"\t{line}\n" for line in self.lines)
        slots, results = max(2, len(self.sources)), max(1, len(self.results))
        return f""".visible .entry {self.name}(.param .u64 in, .param .u64 out)
{{
	.reg .b32 %x0, %x1, %x2, %x3, %sh, %shbase, %me, %lane;
	.reg .b64 %in, %out, %word, %xd, %off;
	.shared .align 16 .b8 staged_{self.name}[{THREADS * STAGED}];
{registers}	mov.u32 %me, %tid.x;
	mov.u32 %x0, %ctaid.x;
	mad.lo.u32 %lane, %x0, {THREADS}, %me;
	mov.u32 %shbase, staged_{self.name};
	shl.b32 %sh, %me, 4;
	add.u32 %sh, %sh, %shbase;
	ld.param.u64 %in, [in];
	ld.param.u64 %out, [out];
	cvta.to.global.u64 %in, %in;
	cvta.to.global.u64 %out, %out;
	add.u64 %word, %out, {LANES * 8 * results};
	mul.wide.u32 %off, %lane, {8 * slots};
	add.u64 %in, %in, %off;
	mul.wide.u32 %off, %lane, {8 * results};
	add.u64 %out, %out, %off;
{body}	ret;
}}
"""

    def inputs(self, rng):
        slots = max(2, len(self.sources))
        i, data = self.instruction, bytearray()
        for _ in range(LANES):
            for slot in range(slots):
                register = self.sources[slot] if slot < len(self.sources) else ""
                data += value_of(i, register, rng).to_bytes(8, "little")
        return bytes(data)

    def output_bytes(self):
        return LANES * 8 * max(1, len(self.results)) + 8


def value_of(instruction, register, rng):
    if instruction.parts[0] == "mma":
        # Sums of bounded products, so that the order of addition has a bounded effect.
        a = [r for o in instruction.operands[1:3] for r in instruction.registers(o)]
        if register in a:
            if any(t in instruction.opcode for t in ("e4m3", "e5m2", "s8", "u8")):
                return sum((rng.randrange(0x30, 0x40) | rng.randrange(2) << 7) << 8 * k for k in range(4))
            exponent = 0x3F00 if "bf16" in instruction.opcode else 0x3800
            step = 0x80 if "bf16" in instruction.opcode else 0x400
            half = lambda: exponent + rng.randrange(2 * step) | rng.randrange(2) << 15
            return half() | half() << 16
        return struct.unpack("<I", struct.pack("<f", rng.uniform(-8, 8)))[0]
    bits, kind = rng.getrandbits(64), instruction.source_type
    choice = rng.randrange(8)
    if kind == "f32" and choice < 5:
        special = (0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x3F800000)
        if choice == 0:
            return rng.choice(special)
        span = 4.0 if choice < 3 else 400.0
        return struct.unpack("<I", struct.pack("<f", rng.uniform(-span, span)))[0]
    if choice == 0:
        return rng.choice((0, 1, 31, 32, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, (1 << 64) - 1, 1 << 63))
    return bits


class Machine:
    """The PTX machine; `order` starts blocks and warps in another order."""

    def __init__(self, library, order=0):
        self.lib, self.order = c.CDLL(library), order
        self.lib.kvcachePtxMachineCreate.restype = c.c_void_p
        self.lib.kvcachePtxAddBuffer.restype = c.c_uint64
        self.lib.kvcachePtxLaunch.restype = c.c_int64
        self.machine = c.c_void_p(self.lib.kvcachePtxMachineCreate())

    def error(self):
        text = c.create_string_buffer(4000)
        self.lib.kvcachePtxLastError(self.machine, text, c.c_size_t(4000))
        return text.value.decode()

    def load(self, text):
        self.module = self.lib.kvcachePtxLoadModule(self.machine, text.encode(), b"conformance")
        if self.module < 0:
            raise SystemExit(f"the PTX machine refuses the test kernels: {self.error()}")

    def run(self, name, data, size):
        given, out = c.create_string_buffer(data, len(data)), c.create_string_buffer(size)
        self.lib.kvcachePtxClearBuffers(self.machine)
        addresses = [c.c_uint64(self.lib.kvcachePtxAddBuffer(self.machine, b, c.c_uint64(len(b)), None, n, 0, 1))
                     for b, n in ((given, b"in"), (out, b"out"))]
        pointers = (c.c_void_p * 2)(*[c.cast(c.byref(a), c.c_void_p) for a in addresses])
        options = (c.c_uint32 * 8)(1, 0, 0, 1, 0, 0, 1, 3 if self.order else 0)
        tail = (c.c_uint64 * 3)(0, self.order, 0)
        block = c.create_string_buffer(bytes(options) + bytes(tail), 56)
        if self.lib.kvcachePtxLaunch(self.machine, self.module, name.encode(), (c.c_uint32 * 3)(BLOCKS, 1, 1),
                                     (c.c_uint32 * 3)(THREADS, 1, 1), 0, pointers, block) != 0:
            raise SystemExit(f"{name} on the PTX machine: {self.error() or 'findings'}")
        return out.raw


class Card:
    def __init__(self, driver, ordinal):
        self.lib, device, self.context = c.CDLL(driver), c.c_int(), c.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", c.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", c.byref(self.context), device)
        self.call("cuCtxPushCurrent_v2", self.context)
        numbers = []
        for attribute in (75, 76):  # compute capability, major and minor
            value = c.c_int()
            self.call("cuDeviceGetAttribute", c.byref(value), attribute, device)
            numbers.append(value.value)
        self.capability = 10 * numbers[0] + numbers[1]
        self.memory = [c.c_uint64(), c.c_uint64()]
        for address in self.memory:
            self.call("cuMemAlloc_v2", c.byref(address), c.c_size_t(1 << 20))

    def call(self, name, *arguments):
        if result := getattr(self.lib, name)(*arguments):
            raise SystemExit(f"{name} failed: error {result} of the driver")

    def load(self, text):
        self.module = c.c_void_p()
        self.call("cuModuleLoadDataEx", c.byref(self.module), text.encode() + b"\0", 0, None, None)

    def run(self, name, data, size):
        function, out = c.c_void_p(), c.create_string_buffer(size)
        self.call("cuModuleGetFunction", c.byref(function), self.module, name.encode())
        self.call("cuMemcpyHtoD_v2", self.memory[0], data, c.c_size_t(len(data)))
        self.call("cuMemcpyHtoD_v2", self.memory[1], out, c.c_size_t(size))
        pointers = (c.c_void_p * 2)(*[c.cast(c.byref(a), c.c_void_p) for a in self.memory])
        self.call("cuLaunchKernel", function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, pointers, None)
        self.call("cuStreamSynchronize", None)
        self.call("cuMemcpyDtoH_v2", out, self.memory[1], c.c_size_t(size))
        return out.raw


def as_float(bits, kind):
    exponent, mantissa = FLOATS[kind]
    if kind == "bf16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return struct.unpack("<f" if kind == "f32" else "<e", bits.to_bytes(4 if kind == "f32" else 2, "little"))[0]


def parts_of(bits, kind):
    """The floats in a result of type `kind`."""
    if kind in FLOATS:
        return [as_float(bits & (1 << sum(FLOATS[kind]) + 1) - 1, kind)]
    if kind in ("f16x2", "bf16x2"):
        return [as_float(bits >> s & 0xFFFF, kind[:-2]) for s in (0, 16)]
    return []


def distance(a, b, instruction):
    """0 when equal or both NaN, None when different where they may not be, else the error as a share of the allowed."""
    if a == b:
        return 0
    x, y = parts_of(a, instruction.target_type), parts_of(b, instruction.target_type)
    limit = CLOSE.get(instruction.parts[0].lower())
    if limit and instruction.parts[0] != "mma" and "approx" not in instruction.parts:
        limit = None
    worst = 0 if x else None
    for p, q in zip(x, y):
        if p != p and q != q:
            continue
        if p != p or q != q or not limit or (p != q and math.isinf(p) != math.isinf(q)):
            if p == q and p == 0 and limit:
                continue
            return None
        error = abs(p - q)
        if limit[0] == "ulp":
            error /= max(abs(p), 2.0**-126) * 2.0**-23
        worst = max(worst, error / limit[1])
    return worst if worst is not None and worst <= 1 else None


def signed(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def round_f32(value):
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def known_answer(i, v):
    """What the instruction gives for operand values `v`, or None where this does not know."""
    name, kind = i.parts[0], i.source_type
    mask = lambda value, bits: value & (1 << bits) - 1
    if kind in ("f32",) and name in ("add", "sub", "mul", "neg") and i.target_type == "f32":
        x = [as_float(value & 0xFFFFFFFF, "f32") for value in v]
        # The product and the sum of two f32, rounded to double and then to f32, are rounded as if once.
        value = {"add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1], "mul": lambda: x[0] * x[1],
                 "neg": lambda: -x[0]}[name]()
        return None if value != value else round_f32(value)
    if i.opcode == "cvt.rn.f16x2.e4m3x2":
        halves = []
        for code in (v[0] & 0xFF, v[0] >> 8 & 0xFF):
            e, m = code >> 3 & 15, code & 7
            if e == 15 and m == 7:
                return None
            value = (1 + m / 8) * 2.0**(e - 7) if e else m / 8 * 2.0**-6
            halves.append(struct.unpack("<H", struct.pack("<e", -value if code >> 7 else value))[0])
        return halves[0] | halves[1] << 16
    if not re.fullmatch(r"[bsu](16|32|64)", kind) or name == "cvt" and not re.fullmatch(r"[bsu]\d+", i.target_type):
        return None
    bits = int(kind[1:])
    n = [signed(x, bits) if kind[0] == "s" else mask(x, bits) for x in v]
    shift = lambda k: min(v[k] & 0xFFFFFFFF, bits)
    rules = {
        "add": lambda: n[0] + n[1], "sub": lambda: n[0] - n[1], "and": lambda: n[0] & n[1], "or": lambda: n[0] | n[1],
        "xor": lambda: n[0] ^ n[1], "not": lambda: ~n[0], "min": lambda: min(n), "max": lambda: max(n),
        "shl": lambda: n[0] << shift(1), "shr": lambda: n[0] >> shift(1), "popc": lambda: bin(n[0]).count("1"),
        "mul": lambda: n[0] * n[1] >> (bits if "hi" in i.parts else 0), "mad": lambda: n[0] * n[1] + n[2],
        "selp": lambda: n[0] if v[2] & 1 else n[1], "mov": lambda: n[0], "div": lambda: n[0] // (n[1] | 1),
        "lop3": lambda: sum((v[3] >> ((n[0] >> b & 1) << 2 | (n[1] >> b & 1) << 1 | n[2] >> b & 1) & 1) << b
                            for b in range(32)),
        "prmt": lambda: sum((((n[0] | n[1] << 32) >> 8 * (n[2] >> 4 * k & 7) & 0xFF) if not n[2] >> 4 * k & 8 else
                             0xFF * ((n[0] | n[1] << 32) >> 8 * (n[2] >> 4 * k & 7) + 7 & 1)) << 8 * k
                            for k in range(4)),
        "shf": lambda: (n[1] << 32 | n[0]) >> (n[2] & 31) if i.opcode == "shf.r.wrap.b32" else None,
        "setp": lambda: {"eq": n[0] == n[1], "ne": n[0] != n[1], "lt": n[0] < n[1], "le": n[0] <= n[1],
                         "gt": n[0] > n[1], "ge": n[0] >= n[1]}[i.parts[1]],
        "cvt": lambda: n[0],
    }
    if name not in rules or (name == "div" and kind[0] == "s") or (name in ("mul", "mad") and "wide" not in i.parts
                                                                  and "lo" not in i.parts and "hi" not in i.parts):
        return None
    result = rules[name]()
    if result is None:
        return None
    width = 2 * bits if "wide" in i.parts else 1 if name == "setp" else \
        32 if name == "popc" else int(re.sub(r"\D", "", i.target_type))
    register = 16 if i.operands[0].startswith("%rs") else 64 if i.operands[0].startswith("%rd") else 32
    # A narrower result is extended to its register by its own type.
    extended = signed(result, width) if i.target_type[0] == "s" and width < register else mask(result, width)
    return mask(extended, 1 if name == "setp" else max(register, width))


def check_known(test, data, out):
    """How many results were compared with plain Python, and how many differ."""
    i, compared, wrong = test.instruction, 0, 0
    if test.kind != "register" or len(test.results) != 1 or any(o.startswith(("[", "{")) for o in i.operands):
        return 0, 0
    slots = max(2, len(test.sources))
    for lane in range(LANES):
        values = []
        for operand in i.operands[1:]:
            if operand in test.sources:
                at = 8 * (lane * slots + test.sources.index(operand))
                values.append(int.from_bytes(data[at:at + 8], "little"))
            elif re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", operand):
                values.append(int(operand, 0) & (1 << 64) - 1)
            elif re.fullmatch(r"0[fF][0-9a-fA-F]{8}", operand):
                values.append(int(operand[2:], 16))
            else:
                return 0, 0
        answer = known_answer(i, values)
        if answer is None:
            continue
        found = int.from_bytes(out[8 * lane:8 * lane + 8], "little")
        compared += 1
        wrong += found != answer
    return compared, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ptx", nargs="+", help="PTX files")
    parser.add_argument("--machine", required=True, help="libkvcache_ptx.so")
    parser.add_argument("--device", default="sim", help="sim, cuda or cuda:N")
    parser.add_argument("--driver", default="libcuda.so.1", help="driver library")
    parser.add_argument("--instances", type=int, default=3, help="instructions of each kind (default: 3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the numbers")
    parser.add_argument("--keep", help="write the test kernels to NAME.CHIP.ptx")
    options = parser.parse_args()
    start = time.time()
    machine, card = Machine(options.machine), None
    if options.device.startswith("cuda"):
        card = Card(options.driver, int(options.device[5:] or 0))
    texts = [open(path).read() for path in options.ptx]
    if card:
        texts = [text for text in texts if int(re.sub(r"\D", "", chip_of(text))) <= card.capability]
    chips, opcodes, incomparable = collect(texts, options.instances)
    other = card or Machine(options.machine, order=7)
    rows = {}
    for chip, (header, keys) in sorted(chips.items()):
        tests = [Test(number, found) for number, found in enumerate(f for group in keys.values() for f in group)]
        module = header + "\n" + "\n".join(t.text() for t in tests)
        if options.keep:
            with open(f"{options.keep}.{chip}.ptx", "w") as f:
                f.write(module)
        for device in (machine, other):
            device.load(module)
        for test in tests:
            data = test.inputs(random.Random(options.seed * 1000003 + len(test.instruction.text)))
            a, b = [d.run(test.name, data, test.output_bytes()) for d in (machine, other)]
            count = max(1, len(test.results))
            values = [[int.from_bytes(out[8 * k:8 * k + 8], "little") for k in range(LANES * count)] for out in (a, b)]
            if test.kind == "sorted":
                values = [sorted(v) for v in values]
            row = rows.setdefault(test.instruction.opcode, {"kernels": 0, "results": 0, "different": 0, "close": 0,
                                                            "error": 0.0, "known": 0, "known_wrong": 0, "first": ""})
            row["kernels"] += 1
            row["results"] += len(values[0])
            for lane, (x, y) in enumerate(zip(*values)):
                far = distance(x, y, test.instruction)
                if far is None:
                    row["different"] += 1
                    row["first"] = row["first"] or f"{chip}: {test.instruction.text}: machine {x:#x}, device {y:#x}"
                elif far:
                    row["close"] += 1
                    row["error"] = max(row["error"], far)
            compared, wrong = check_known(test, data, a)
            row["known"] += compared
            row["known_wrong"] += wrong
            if wrong and not row["first"]:
                row["first"] = f"{chip}: {test.instruction.text}: not what plain Python gives"
    bad = {name: row for name, row in rows.items() if row["different"] or row["known_wrong"]}
    untested = sorted(opcodes - set(rows))
    print(f"conformance of the PTX machine with {'the card' if card else 'itself in another order'}: {len(rows)} opcodes, "
          f"{sum(r['kernels'] for r in rows.values())} kernels, {sum(r['results'] for r in rows.values())} results; "
          f"{sum(1 for r in rows.values() if r['close'])} opcodes close, {len(bad)} wrong; "
          f"{sum(1 for r in rows.values() if r['known'])} opcodes known to plain Python; "
          f"{len(incomparable)} without a result of their own{'; NOT TESTED: ' + ', '.join(untested) if untested else ''}")
    for name, row in sorted(bad.items()):
        print(f"  {name}: {row['different']} of {row['results']} differ, {row['known_wrong']} of {row['known']} not as "
              f"known; {row['first']}")
    result = {"good": not bad and not untested, "device": options.device,
              "capability": card.capability if card else None, "opcodes": rows, "incomparable": incomparable,
              "untested": untested, "seconds": round(time.time() - start, 2)}
    if options.json:
        with open(options.json, "w") as f:
            json.dump(result, f, indent=1)
    sys.exit(0 if result["good"] else 1)


if __name__ == "__main__":
    main()
