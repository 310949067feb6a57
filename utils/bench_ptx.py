#!/usr/bin/env python3
"""Speed of the PTX machine: one decode attention step, best of several runs.

    utils/bench_ptx.py BUILD [--sequences 4] [--tokens 1024] [--threads 1,2] [--runs 5] [--regions]

The kernel is test/PTX/Inputs/decode.cu (64 query heads, 8 KV heads, head
dimension 128, bf16 queries, e4m3 cache, pages of 64 tokens), compiled by clang.
Elapsed and processor time are given: where the machine does other work as well,
only the latter says something.
Limits on one thread for 4 sequences of 1,024 tokens: 60 ms with all checks, 20 ms
with none.
"""

import argparse
import os
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "test", "PTX"))

KERNEL = "nhd64_t32_s3_pad"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="build folder")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", default="1,2", help="host threads, separated by commas")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--llvm-bin", default="", help="folder of clang++; default: clang++-22 from PATH")
    parser.add_argument("--regions", action="store_true", help="print the counts of each region of the kernel")
    options = parser.parse_args()
    os.environ["KVCACHE_PTX_LIB"] = os.path.join(options.build, "lib", "libkvcache_ptx.so")
    import decode_case
    import ptx_machine

    machine = ptx_machine.Machine()
    launch, processor = machine.launch, []

    def timed(*arguments, **named):
        start = time.process_time()
        report = launch(*arguments, **named)
        processor.append(time.process_time() - start)
        return report

    machine.launch = timed
    with tempfile.TemporaryDirectory() as work:
        source = os.path.join(work, "decode.cu")
        with open(decode_case.SOURCE) as f, open(source, "w") as g:
            g.write(decode_case.only_instances(f.read(), [KERNEL]))
        module = machine.module(decode_case.compile_cuda(options.llvm_bin, source, os.path.join(work, "decode.ptx")), "decode")
    shape = decode_case.Shape(KERNEL)
    case = decode_case.Case([options.tokens] * options.sequences, shape.page, shape.layout, seed=1, split=512)
    kinds = [
        ("all checks and counts", ptx_machine.ALL),
        ("all checks", dict(ptx_machine.ALL, counters=0)),
        ("memcheck", ptx_machine.FAST),
        ("counts only", dict(counters=1)),
        ("counts by region", dict(counters=1, regions=1)),
        ("no checks", {"threads": 1})]
    tokens = options.sequences * options.tokens
    print(f"{KERNEL}: {options.sequences} sequences of {options.tokens} tokens, 64/8 heads, D 128, bf16 Q, e4m3")
    for name, wanted in kinds:
        for threads in map(int, options.threads.split(",")):
            times = []
            processor.clear()
            for _ in range(options.runs):
                report = case.run(machine, module, KERNEL, dict(wanted, threads=threads))
                if report["findings"]:
                    sys.exit(f"findings: {report['findings'][:2]}")
                times.append(report["seconds"])
            best = min(times)
            rate = report["counters"]["instructions"] / best / 1e6
            print(f"  {name:22s} {threads} thread{'s' if threads > 1 else ' '} {best * 1e3:8.1f} ms, processor {min(processor) * 1e3:7.1f} ms"
                  f"  {rate:7.1f} M warp instructions/s  {tokens / best / 1e3:8.1f} k tokens/s")
    if options.regions:
        case.run(machine, module, KERNEL, dict(counters=1, regions=1, threads=1))
        print(machine.table(), end="")


if __name__ == "__main__":
    main()
