#!/usr/bin/env python3
"""Runs the examples in the descriptions of passes.

In a description of a Passes.td, the block under `Before:` goes through the pass
(with the options of `After, with `OPTIONS`:`) and gives what the block under
`After` says: its text, where `...` stands for anything and line breaks do not
count. A block under `Refused:` says in `expected-error` what the pass reports,
one under `Example:` is only run. Every pass has one of these. A pipeline in a block
by itself is run on the block under `Before:`.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import textwrap

BLOCK = re.compile(r"^ *(Before|After|Refused|Example)\b([^\n]*):\n\s*^ *```mlir\n(.*?)^ *```", re.M | re.S)


def normal(text):
    return re.sub(r"\s+", " ", text).strip()


def shows(want, got):
    """Whether the pieces of `want` between its `...` stand in `got` in order."""
    pieces = [re.escape(normal(piece)) for piece in want.split("...")]
    return re.search(".*?".join(pieces), normal(got)) is not None


class Runner:
    def __init__(self, options):
        self.program, self.folder = options.kvcache_opt, options.work
        self.count, self.complaints = 0, []
        options.work.mkdir(parents=True, exist_ok=True)
        # What options name: the checkpoints of the tests, and the device library.
        for name, path in (("test", options.source / "test"), ("kvcache_kernels.bc", options.kernels)):
            link = options.work / name
            link.unlink(missing_ok=True)
            link.symlink_to(path.resolve())

    def run(self, text, *arguments):
        return subprocess.run([self.program, "-", "--allow-unregistered-dialect", *arguments], input=text,
                              capture_output=True, text=True, cwd=self.folder)

    def check(self, file, name, anchor, description):
        def pipeline(options):
            spelled = f"{name}{{{options}}}"
            return "--pass-pipeline=builtin.module(" + (
                f"gpu.module({spelled})" if anchor.endswith("GPUModuleOp") else spelled) + ")"

        blocks = [(kind, (re.search(r"with\s+`([^`]*)`", rest) or ["", ""])[1], textwrap.dedent(text))
                  for kind, rest, text in BLOCK.findall(description)]
        if len(blocks) != description.count("```mlir"):
            self.complaints.append(f"{file}: {name}: {description.count('```mlir')} blocks of MLIR, but {len(blocks)} "
                                   "under Before:, After:, Refused: or Example:")
        if not blocks:
            self.complaints.append(f"{file}: {name} has no example")
        before = None
        for kind, settings, text in blocks:
            self.count += 1
            if kind == "Before":
                before = text
            elif kind == "After":
                done = self.run(before, pipeline(settings))
                if done.returncode:
                    self.complaints.append(f"{file}: {name} fails on its example: {done.stderr}")
                elif not shows(text, done.stdout):
                    self.complaints.append(f"{file}: {name}: the example says\n{text}\nbut the pass gives\n{done.stdout}")
                elif shows(text, self.run(before).stdout):
                    self.complaints.append(f"{file}: {name}: the example shows nothing that the pass does:\n{text}")
            else:
                done = self.run(text, pipeline(settings), *(["--verify-diagnostics"] if kind == "Refused" else []))
                if done.returncode or (kind == "Refused" and "expected-error" not in text):
                    self.complaints.append(f"{file}: {name}: the {kind} block is not what happens: {done.stderr}")
        for pipeline_text in re.findall(r"^ *```\n *(builtin\.module\(.*?)\n *```", description, re.M | re.S):
            self.count += 1
            done = self.run(before, f"--pass-pipeline={normal(pipeline_text)}")
            if done.returncode:
                self.complaints.append(f"{file}: {name}: its pipeline fails on its example: {done.stderr}")
        if before and not any(kind == "After" for kind, _, _ in blocks):
            self.complaints.append(f"{file}: {name} has Before: without After:")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvcache-opt", default="kvcache-opt")
    for name in ("source", "kernels", "work"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    options = parser.parse_args()
    runner = Runner(options)
    for table in sorted((options.source / "include/kvcache").glob("*/Passes.td")):
        pieces = re.split(r'^def \w+ : Pass<"([^"]+)", "([^"]+)">', table.read_text(), flags=re.M)[1:]
        for name, anchor, body in zip(pieces[::3], pieces[1::3], pieces[2::3]):
            runner.check(table.relative_to(options.source), name, anchor, re.search(r"\[\{(.*?)\}\]", body, re.S)[1])
    for complaint in runner.complaints:
        print(complaint, file=sys.stderr)
    print(f"{runner.count} examples, {len(runner.complaints)} failures")
    return 1 if runner.complaints or not runner.count else 0


if __name__ == "__main__":
    sys.exit(main())
