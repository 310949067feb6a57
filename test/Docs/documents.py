#!/usr/bin/env python3
"""Checks the documents as a reader uses them: each example in MLIR is run by a
test or is parsed here, each link leads somewhere, and the files and programs of
the project that are named exist."""

import argparse
import pathlib
import re
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--source", type=pathlib.Path, required=True)
parser.add_argument("--build", type=pathlib.Path, required=True)
options = parser.parse_args()
complaints, counts = [], {"examples": 0, "links": 0, "names": 0}


def complain(path, text, at, what):
    complaints.append(f"{path.relative_to(options.source)}:{text.count(chr(10), 0, at) + 1}: {what}")


def exists(name):
    return (options.source / name).exists() or any(options.source.glob(name))


for path in [options.source / "README.md", *sorted(options.source.glob("docs/**/*.md"))]:
    text = path.read_text()
    for block in re.finditer(r"^```mlir[^\n]*\n(.*?)^```", text, re.M | re.S):
        # Written from the .td files, whose examples have tests of their own.
        if "Written by utils/reference.py" in text[:200]:
            continue
        counts["examples"] += 1
        done = subprocess.run(["kvcache-opt", "--allow-unregistered-dialect"], input=block[1], capture_output=True, text=True)
        if done.returncode:
            complain(path, text, block.start(), done.stderr)
    for link in re.finditer(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        counts["links"] += 1
        if not (path.parent / link[1]).exists():
            complain(path, text, link.start(), f"the link {link[1]} leads nowhere")
    for name in re.finditer(r"(?<![\w/.-])(?:utils|test|docs|kernels|lib|include|tools)/[\w./*-]*\w", text):
        counts["names"] += 1
        if not exists(name[0]) and not (options.build / name[0]).exists():
            complain(path, text, name.start(), f"there is no {name[0]}")
    for name in re.finditer(r"\bkvcache-(?:opt|run|bench|compile|scales|reduce|translate|lsp-server)\b", text):
        counts["names"] += 1
        if not (options.build / "bin" / name[0]).exists():
            complain(path, text, name.start(), f"there is no program {name[0]}")

print("\n".join(complaints), file=sys.stderr)
print(counts, f"{len(complaints)} failures")
sys.exit(bool(complaints) or not all(counts.values()))
