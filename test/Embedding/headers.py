#!/usr/bin/env python3
"""Compiles each public header by itself, twice in one file."""

import argparse
import pathlib
import subprocess
import sys

MLIR_ROOMS = {"IR", "Import", "TorchExport", "Transforms", "Conversion", "Pipelines"}
MLIR_HEADERS = {"kvcache/InitAll.h", "kvcache-c/Dialect.h", "kvcache-c/ScaleTable.h"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cxx", required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--include", action="append", required=True)
    parser.add_argument("--mlir", help="folder of MLIR's headers: compile those that need it, else the others")
    options = parser.parse_args()
    root = pathlib.Path(options.include[0])
    flags = [f"-I{folder}" for folder in options.include] + ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-fsyntax-only"]
    if options.mlir:
        flags += ["-isystem", options.mlir, "-fno-rtti"]
    count = failures = 0
    for header in sorted(root.rglob("*.h")):
        name = str(header.relative_to(root))
        needs_mlir = name in MLIR_HEADERS or header.parent.name in MLIR_ROOMS
        if needs_mlir != bool(options.mlir):
            continue
        languages = [(options.cxx, "c++", ["-std=c++17"])]
        if name.startswith("kvcache-c/"):
            languages.append((options.cc, "c", ["-std=c99", "-pedantic"]))
        for compiler, language, standard in languages:
            source = f'#include "{name}"\n' * 2
            done = subprocess.run([compiler, "-x", language, *standard, *[f for f in flags if language == "c++" or f != "-fno-rtti"], "-"],
                                  input=source, capture_output=True, text=True)
            count += 1
            if done.returncode:
                failures += 1
                print(f"{name} as {language}:\n{done.stderr[:3000]}", file=sys.stderr)
    print(f"{count} headers, {failures} failures")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
