#!/usr/bin/env python3
"""What bash completes for a tool, against what the tool's --help lists."""

import os
import re
import subprocess
import sys


def complete(script, words):
    """The candidates for the last of `words`, as bash splits a line."""
    split = [part for word in words for part in (re.split("(=)", word) if word.startswith("--") else [word])]
    if split[-1] == "" and len(split) > 1 and split[-2] == "=":
        split.pop()  # bash offers the sign itself
    function = re.search(r"^complete -F (\S+) ", script, re.M)[1]
    quoted = " ".join(f"'{word}'" for word in split)
    program = f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(split) - 1}; {function}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-u", "-c", program], capture_output=True, text=True)
    if done.stderr:
        sys.exit(done.stderr)
    return sorted(set(done.stdout.split()))


def listed(tool, *command):
    """The options and commands that --help shows."""
    text = subprocess.run([tool, *command, "--help"], capture_output=True, text=True, check=True).stdout
    options = set()
    for line in re.findall(r"^  (-\S[^\n]*)", text, re.M):
        for name in re.findall(r"(?:^|,)(--?[\w-]+)", re.split(r"\s{2,}| [A-Z{[]", line)[0]):
            options.add(name)
    section = text.partition("Subcommands:\n")[2].partition("\n\n")[0]
    return options, re.findall(r"^  ([a-z]\w*)\b", section, re.M)


def main():
    failures = count = 0

    def expect(script, words, want):
        nonlocal failures, count
        count += 1
        got = complete(script, words)
        if got != sorted(want):
            failures += 1
            print(f"{' '.join(words)}: expected {sorted(want)}, but bash completes {got}", file=sys.stderr)

    open("file.safetensors", "w").close()
    os.makedirs("folder", exist_ok=True)
    for tool in ("kvcache-run", "kvcache-bench", "kvcache-scales"):
        script = subprocess.run([tool, "--completion=bash"], capture_output=True, text=True, check=True).stdout
        options, commands = listed(tool)
        # The shape of a help text may change, but not to nothing.
        assert {"--help", "--version", "--completion"} <= options, options
        for command in [None, *commands]:
            before = [tool] + ([command] if command else [])
            names = listed(tool, command)[0] if command else options
            got = {name.rstrip("=") for name in complete(script, before + ["-"])}
            count += 1
            if got != names:
                failures += 1
                print(f"{' '.join(before)}: --help lists {sorted(names)}, but bash completes {sorted(got)}", file=sys.stderr)
        if commands:
            expect(script, [tool, ""], commands)

    script = subprocess.run(["kvcache-scales", "--completion=bash"], capture_output=True, text=True).stdout
    expect(script, ["kvcache-scales", "sh"], ["show"])
    expect(script, ["kvcache-scales", "show", "--format="], ["html", "json", "text"])
    expect(script, ["kvcache-scales", "show", "--format=j"], ["json"])
    expect(script, ["kvcache-scales", "calibrate", "-o", "f"], ["file.safetensors", "folder"])
    expect(script, ["kvcache-scales", "rebind", "--checkpoint=f"], ["folder"])
    expect(script, ["kvcache-scales", "check", "folder", "--require"], ["--require-calibrated"])
    expect(script, ["kvcache-scales", "check", "fold"], ["folder"])
    script = subprocess.run(["kvcache-run", "--completion=bash"], capture_output=True, text=True).stdout
    expect(script, ["kvcache-run", "--inputs=a,fi"], ["a,file.safetensors"])
    expect(script, ["kvcache-run", "--target="], [])
    expect(script, ["kvcache-run", "--ver"], ["--verify", "--version"])
    print(f"{count} completions, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
