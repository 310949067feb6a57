#!/usr/bin/env python3
"""Checks the documents as a reader uses them: each example in MLIR is run by a
test or is parsed here, each link leads somewhere, the files and programs of the
project that are named exist, and their `--help` has the options that commands
give them, and files have the cases that are quoted behind their names."""

import argparse
import functools
import pathlib
import re
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--source", type=pathlib.Path, required=True)
parser.add_argument("--build", type=pathlib.Path, required=True)
options = parser.parse_args()
complaints, counts = [], {"examples": 0, "links": 0, "names": 0, "options": 0, "cases": 0}


def complain(path, text, at, what):
    complaints.append(f"{path.relative_to(options.source)}:{text.count(chr(10), 0, at) + 1}: {what}")


def exists(name):
    return (options.source / name).exists() or any(options.source.glob(name))


@functools.cache
def help_of(*command):
    done = subprocess.run([*command, "--help"], capture_output=True, text=True)
    return done.stdout + done.stderr


def check_options(path, text, block):
    for line in re.sub(r"\$\([^)]*\)", "", block[2]).replace("\\\n", " ").splitlines():
        script = re.search(r"python3?\s+(?:[\w/]*/)?([\w-]+\.py)\s(.*)", line)
        program = re.match(r"(?:\$ )?(?:build/bin/)?(kvcache-[\w-]+)\s(.*)", line)
        if script:
            found = [*options.source.glob(f"utils/{script[1]}"), *options.source.glob(f"test/**/{script[1]}")]
            command = [sys.executable, "-B", str(found[0])] if found else None
        elif program and program[1] != "kvcache-opt":  # which checks them itself where the suite runs it
            subcommand = re.match(r"[a-z]+\b", program[2]) if program[1] == "kvcache-scales" else None
            command = [program[1], *([subcommand[0]] if subcommand else [])]
        else:
            continue
        given = (script or program)[2].split(" -- ")[0].split(" | ")[0]
        for option in re.findall(r"(?<!\S)--[a-z][\w-]*", given):
            counts["options"] += 1
            if not command or not re.search(rf"{option}\b", help_of(*command)):
                complain(path, text, block.start(), f"{(script or program)[1]} has no option {option}")


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
    for block in re.finditer(r"^```([^\n]*)\n(.*?)^```", text, re.M | re.S):
        if block[1] in ("", "sh", "console"):
            check_options(path, text, block)
    for link in re.finditer(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        counts["links"] += 1
        if not (path.parent / link[1]).exists():
            complain(path, text, link.start(), f"the link {link[1]} leads nowhere")
    for name in re.finditer(r"(?<![\w/.-])(?:utils|test|docs|kernels|lib|include|tools)/[\w./*-]*\w", text):
        counts["names"] += 1
        if not exists(name[0]) and not (options.build / name[0]).exists():
            complain(path, text, name.start(), f"there is no {name[0]}")
    for named in re.finditer(r"`(test/[\w/.-]+)`: (\"[^|]*\")", text):
        cases = (options.source / named[1]).read_text() if exists(named[1]) else ""
        for case in re.findall(r'"([^"]+)"', named[2]):
            counts["cases"] += 1
            if case not in cases:
                complain(path, text, named.start(), f"{named[1]} has no case {case}")
    for name in re.finditer(r"\bkvcache-(?:opt|run|bench|compile|scales|reduce|translate|lsp-server)\b", text):
        counts["names"] += 1
        if not (options.build / "bin" / name[0]).exists():
            complain(path, text, name.start(), f"there is no program {name[0]}")

print("\n".join(complaints), file=sys.stderr)
print(counts, f"{len(complaints)} failures")
sys.exit(bool(complaints) or not all(counts.values()))
