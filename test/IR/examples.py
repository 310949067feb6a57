#!/usr/bin/env python3
"""Runs every example of the documentation in .td files through kvcache-opt, as
it stands there, and checks that every op of the dialect is in one."""

import argparse
import re
import subprocess
import sys
import textwrap


def examples(path):
    """(line, text) of each ```mlir block."""
    with open(path) as file:
        text = file.read()
    for block in re.finditer(r"^ *```mlir\n(.*?)^ *```", text, re.M | re.S):
        yield text.count("\n", 0, block.start()) + 2, textwrap.dedent(block.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvcache-opt", default="kvcache-opt")
    parser.add_argument("--every-op-of", help="a .td file whose ops must all be in an example")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    count, failures, seen = 0, 0, ""
    for path in options.files:
        for line, text in examples(path):
            # Examples are parsed, verified, printed and parsed again.
            printed = subprocess.run([options.kvcache_opt], input=text, capture_output=True, text=True)
            again = subprocess.run([options.kvcache_opt], input=printed.stdout, capture_output=True,
                                   text=True)
            count += 1
            seen += text
            if printed.returncode or again.returncode or again.stdout != printed.stdout:
                failures += 1
                print(f"{path}:{line}: {printed.stderr or again.stderr or 'prints differently'}")
    if options.every_op_of:
        with open(options.every_op_of) as file:
            mnemonics = re.findall(r'def \w+Op : \w+<"(\w+)"', file.read())
        for mnemonic in mnemonics:
            if not re.search(rf"\bkvcache\.{mnemonic}\b", seen):
                failures += 1
                print(f"{options.every_op_of}: no example has kvcache.{mnemonic}")
        print(f"{len(mnemonics)} ops")
    print(f"{count} examples, {failures} failures")
    # No examples at all means that the files were not found or have changed.
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
