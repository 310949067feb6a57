#!/usr/bin/env python3
"""Counts the main loop of attention kernels in a cubin: issue slots per KV byte.

    sass_counts.py CUBIN... [--shared-bytes=N] [--kernel=REGEX] [--json] [--dump]

For every kernel it prints registers, stack and spills, and for its main loop the
instructions of the hot path, the KV bytes that a warp's iteration copies (512 for
each LDGSTS.128: 32 lanes of 16 bytes), their quotient, and the bytes in flight.

The main loop is the outermost loop that has both tensor instructions and LDGSTS.
All its instructions count, predicated or not, but for one named exception: the
rescale block, recognised by its SHFL.BFLY, and what is reached only through it.
It runs when a score outgrows the running maximum by three binades.

In flight, per multiprocessor: bytes of an iteration times the copy groups that may
be outstanding at the wait (the DEPBAR count, and the group waited for), times 4
warps, times the CTAs that fit by registers and, with --shared-bytes, by shared
memory (dynamic bytes of the launch).

Needs nvdisasm and cuobjdump: $NVDISASM and $CUOBJDUMP, else PATH, else the
triton package of this Python. The CUDA toolkit and the triton wheel have both.
"""
import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter

INSTRUCTION = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)\s*(.*?)\s*;")
SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")
LABEL = re.compile(r"^(\S+):\s*$")
TARGET = re.compile(r"`\(([^)]+)\)")

TENSOR = ("HMMA", "QMMA", "IMMA", "OMMA", "HGMMA", "QGMMA")
LDGSTS_128_BYTES = 32 * 16
WARPS = 4

# (registers, threads, shared bytes) of a multiprocessor and shared bytes the
# driver takes from each CTA, by compute capability (CUDA programming guide).
MACHINES = {
    80: (65536, 2048, 167936, 1024),
    86: (65536, 1536, 102400, 1024),
    89: (65536, 1536, 102400, 1024),
    90: (65536, 2048, 233472, 1024),
    100: (65536, 2048, 233472, 1024),
    120: (65536, 1536, 102400, 1024),
}


class ToolError(Exception):
    pass


def find_tool(name):
    """Path of nvdisasm or cuobjdump; None if there is none."""
    if path := os.environ.get(name.upper()):
        return path
    if path := shutil.which(name):
        return path
    spec = importlib.util.find_spec("triton")
    if spec and spec.origin:
        path = os.path.join(os.path.dirname(spec.origin), "backends", "nvidia", "bin", name)
        if os.path.exists(path):
            return path
    return None


def run_tool(name, *arguments):
    path = find_tool(name)
    if not path:
        raise ToolError(f"{name} not found; set ${name.upper()}, or install the CUDA toolkit or the triton wheel")
    done = subprocess.run([path, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ToolError(f"{name} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


class Instruction:
    __slots__ = ("address", "predicate", "op", "operands", "base")

    def __init__(self, address, predicate, op, operands):
        self.address, self.predicate, self.op, self.operands = address, predicate, op, operands
        self.base = op.split(".")[0]


def parse(text):
    """nvdisasm -c text -> {kernel: (instructions, {label: index})}"""
    kernels, current = {}, None
    for line in text.splitlines():
        if m := SECTION.match(line):
            current = kernels.setdefault(m[1], ([], {}))
        elif current is None:
            continue
        elif m := LABEL.match(line):
            current[1][m[1]] = len(current[0])
        elif m := INSTRUCTION.match(line):
            current[0].append(Instruction(int(m[1], 16), m[2], m[3], m[4]))
    return kernels


def successors(code, labels):
    """Indices that may follow each instruction."""
    result = []
    for k, i in enumerate(code):
        following = [k + 1] if k + 1 < len(code) else []
        targets = [labels[t] for t in TARGET.findall(i.operands) if labels.get(t, len(code)) < len(code)]
        if i.op.startswith("BRA.DIV"):  # the way of a warp whose lanes have parted
            result.append(following)
        elif i.base in ("BRA", "UBRA", "JMP"):
            # A plain BRA ends the block; @P BRA, BRA.U UP0 fall through.
            plain = not i.predicate and i.operands.startswith("`(")
            result.append(targets if plain else targets + following)
        elif i.op == "CALL.REL.NOINC" and targets:  # a jump that lanes take together
            result.append(targets + (following if i.predicate else []))
        elif i.base in ("EXIT", "RET", "KILL"):
            result.append(following if i.predicate else [])
        elif i.base == "WARPSYNC":
            result.append(following + targets)
        else:
            result.append(following)
    return result


def blocks_of(code, follow):
    heads = {0} | {t for k, s in enumerate(follow) if s != [k + 1] for t in s}
    heads |= {k + 1 for k, s in enumerate(follow) if s != [k + 1]}
    heads = sorted(h for h in heads if h < len(code))
    return {h: range(h, e) for h, e in zip(heads, heads[1:] + [len(code)])}


def dominators(order, predecessors):
    """Sets of dominators by iteration to a fixed point; order: reverse postorder."""
    every = set(order)
    dom = {b: set(every) for b in order}
    dom[order[0]] = {order[0]}
    changed = True
    while changed:
        changed = False
        for b in order[1:]:
            known = [dom[p] for p in predecessors[b] if p in every]
            new = {b} | (set.intersection(*known) if known else set())
            if new != dom[b]:
                dom[b], changed = new, True
    return dom


def natural_loops(blocks, edges):
    """[(header, set of blocks, latches)] of a reducible flow graph."""
    post, seen, stack = [], {0}, [(0, iter(edges[0]))]
    while stack:
        node, rest = stack[-1]
        for t in rest:
            if t not in seen:
                seen.add(t)
                stack.append((t, iter(edges[t])))
                break
        else:
            post.append(node)
            stack.pop()
    order = post[::-1]
    predecessors = {b: [] for b in blocks}
    for b in order:
        for t in edges[b]:
            predecessors[t].append(b)
    dom = dominators(order, predecessors)
    loops = {}
    for b in order:
        for h in edges[b]:
            if h not in dom[b]:
                continue
            body, latches = loops.setdefault(h, ({h}, set()))
            latches.add(b)
            work = [b]
            while work:
                n = work.pop()
                if n not in body:
                    body.add(n)
                    work += predecessors[n]
    return [(h, body, latches) for h, (body, latches) in loops.items()]


def is_copy(i):
    return i.base == "LDGSTS" and "128" in i.op.split(".")


def main_loop(code, labels):
    """(hot instructions, rescale instructions) of the main loop, or None."""
    follow = successors(code, labels)
    blocks = blocks_of(code, follow)
    edges = {h: follow[b[-1]] for h, b in blocks.items()}
    best = None
    for header, body, latches in natural_loops(blocks, edges):
        inside = [code[k] for b in body for k in blocks[b]]
        if any(i.base in TENSOR for i in inside) and any(is_copy(i) for i in inside):
            if best is None or len(body) > len(best[1]):
                best = (header, body, latches)
    if best is None:
        return None
    header, body, latches = best
    cold = {b for b in body if any(code[k].op.startswith("SHFL.BFLY") for k in blocks[b])}
    forward, work = set(), [header]
    while work:
        b = work.pop()
        if b in body and b not in cold and b not in forward:
            forward.add(b)
            work += [t for t in edges[b] if t != header]
    backward, work = set(), [b for b in latches if b not in cold]
    while work:
        b = work.pop()
        if b not in backward:
            backward.add(b)
            work += [p for p in body - cold if b in edges[p] and b != header]
    hot = forward & backward
    index = sorted(k for b in hot for k in blocks[b])
    return [code[k] for k in index], sum(len(blocks[b]) for b in body - hot)


def densest_step(code, labels):
    """(tensor instructions, all instructions) of one turn of the innermost tensor
    loop, on the way that has the most tensor instructions and among those the
    fewest others; and those of a turn of the loop around it, if any, without the
    inner one and with one turn of others. None without such a loop."""
    follow = successors(code, labels)
    blocks = blocks_of(code, follow)
    edges = {h: follow[b[-1]] for h, b in blocks.items()}
    loops = [(h, body, latches) for h, body, latches in natural_loops(blocks, edges)
             if any(code[k].base in TENSOR for b in body for k in blocks[b])]
    if not loops:
        return None
    header, body, latches = min(loops, key=lambda loop: len(loop[1]))
    inner = {b for _, other, _ in loops if other < body for b in other}
    best = {}

    def value(b):
        return sum(code[k].base in TENSOR for k in blocks[b]), -len(blocks[b])

    def longest(b, path):
        if b in best:
            return best[b]
        here, ways = value(b), [(0, 0)] if b in latches else []
        for t in edges[b]:
            if t in body and t != header and t not in path and t not in inner:
                if (way := longest(t, path | {b})) is not None:
                    ways.append(way)
        best[b] = tuple(x + y for x, y in zip(here, max(ways))) if ways else None
        return best[b]

    tensor, rest = longest(header, frozenset())
    around = [loop for loop in loops if loop[1] > body]
    if not around:
        return tensor, -rest, 0
    # One turn of the loop around it, on the way that copies most and is shortest.
    outer, whole, ends = min(around, key=lambda loop: len(loop[1]))
    seen = {}

    def turn(b, path):
        if b in seen:
            return seen[b]
        here = (0, 0) if b in body else (sum(is_copy(code[k]) for k in blocks[b]), -len(blocks[b]))
        ways = [(0, 0)] if b in ends else []
        for t in {t for x in (body if b in body else [b]) for t in edges[x]} - (body if b in body else set()):
            if t in whole and t != outer and t not in path:
                if (way := turn(t, path | {b})) is not None:
                    ways.append(way)
        seen[b] = tuple(x + y for x, y in zip(here, max(ways))) if ways else None
        return seen[b]

    return tensor, -rest, -turn(outer, frozenset())[1]


def resource_usage(path):
    usage, name = {}, None
    for line in run_tool("cuobjdump", "--dump-resource-usage", path).splitlines():
        if m := re.match(r"\s*Function (\S+):", line):
            name = m[1]
        elif name and "REG:" in line:
            usage[name] = {k: int(v) for k, v in re.findall(r"(\w+(?:\[\d+\])?):(\d+)", line)}
    return usage


def ctas_per_sm(arch, registers, shared):
    register_file, threads, shared_sm, reserved = MACHINES[max(a for a in MACHINES if a <= arch)]
    per_warp = -(-registers * 32 // 256) * 256
    fit = min(threads // (32 * WARPS), register_file // (per_warp * WARPS))
    return min(fit, shared_sm // (shared + reserved)) if shared else fit


def report(path, shared_bytes=0):
    """List of one dict per kernel of a cubin."""
    usage, text = resource_usage(path), run_tool("nvdisasm", "-c", path)
    arch = int(re.search(r"\.target\s+sm_(\d+)", text)[1])
    result = []
    for name, (code, labels) in sorted(parse(text).items()):
        if not code:
            continue
        use = usage.get(name, {})
        entry = {
            "kernel": name,
            "arch": arch,
            "registers": use.get("REG"),
            "stack": use.get("STACK"),
            "local": use.get("LOCAL"),
            "spill_loads": sum(i.base == "LDL" for i in code),
            "spill_stores": sum(i.base == "STL" for i in code),
            "instructions": len(code),
        }
        if step := densest_step(code, labels):
            entry["tensor_step"] = dict(zip(("tensor", "instructions", "around"), step))
        loop = main_loop(code, labels)
        if loop:
            hot, rescale = loop
            copies = sum(map(is_copy, hot))
            waits = [int(m[1], 16) for i in hot if i.base == "DEPBAR"
                     and (m := re.search(r"SB\d+, (0x[0-9a-f]+)", i.operands))]
            groups = len(waits)  # an unrolled loop has several iterations
            entry["loop"] = {
                "instructions": len(hot),
                "rescale": rescale,
                "kv_bytes": copies * LDGSTS_128_BYTES,
                "slots_per_byte": len(hot) / (copies * LDGSTS_128_BYTES),
                "by_mnemonic": dict(Counter(i.base for i in hot).most_common()),
                "hot": hot,
            }
            if waits:
                entry["outstanding_groups"] = min(waits) + 1
                ctas = ctas_per_sm(arch, use.get("REG", 255), shared_bytes)
                entry["ctas_per_sm"] = ctas
                entry["bytes_in_flight"] = (min(waits) + 1) * copies * LDGSTS_128_BYTES // groups * WARPS * ctas
        result.append(entry)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cubin", nargs="*")
    parser.add_argument("--tools", action="store_true", help="print the disassembler's paths; exit code 1 without one")
    parser.add_argument("--shared-bytes", type=int, default=0, help="dynamic shared memory of the launch")
    parser.add_argument("--kernel", default="", help="regular expression that names the kernels")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dump", action="store_true", help="print the hot instructions")
    options = parser.parse_args()
    if options.tools:
        paths = [find_tool(name) for name in ("nvdisasm", "cuobjdump")]
        print("\n".join(p or "not found" for p in paths))
        sys.exit(0 if all(paths) else 1)
    if not options.cubin:
        parser.error("expected a cubin")
    entries = []
    try:
        for path in options.cubin:
            entries += [e for e in report(path, options.shared_bytes) if re.search(options.kernel, e["kernel"])]
    except (ToolError, OSError) as error:
        sys.exit(f"sass_counts: {error}")
    for e in entries:
        hot = e.get("loop", {}).pop("hot", [])
        if options.json:
            continue
        line = (f"{e['kernel']}: sm_{e['arch']} registers {e['registers']} stack {e['stack']} "
                f"spills {e['spill_loads'] + e['spill_stores']}")
        if loop := e.get("loop"):
            line += (f" loop {loop['instructions']} (+{loop['rescale']} rescale) per {loop['kv_bytes']} bytes "
                     f"= {loop['slots_per_byte']:.4f}")
            if "ctas_per_sm" in e:
                line += f" CTAs/SM {e['ctas_per_sm']} in flight {e['bytes_in_flight']}"
        print(line)
        if options.dump:
            for i in hot:
                print(f"  {i.address:05x} {i.predicate or '':5s} {i.op:28s} {i.operands}")
    if options.json:
        json.dump(entries, sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
