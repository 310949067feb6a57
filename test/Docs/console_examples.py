"""Runs the ```console blocks of a document and compares their output.

A line `$ command` is run by the shell in a folder in which `test` and `docs` are
those of the project; the lines below it are what it prints, standard error
first. Commands succeed, unless the block says ```console fails. `...` in a line stands for anything, a line `...` for any lines.
"""

import argparse
import os
import re
import subprocess
import sys


def matches(want, got):
    """Lines against lines; a line `...` takes any number of them."""
    pattern = ""
    for line in want:
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n"
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in got)) is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("documents", nargs="+")
    options = parser.parse_args()
    os.makedirs(options.work, exist_ok=True)
    for name in ("test", "docs"):
        link = os.path.join(options.work, name)
        if not os.path.islink(link):
            os.symlink(os.path.join(options.source, name), link)
    count = failures = 0
    for document in options.documents:
        with open(document) as file:
            text = file.read()
        for fails, block in re.findall(r"^```console( fails)?\n(.*?)^```", text, re.M | re.S):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, *want = part.splitlines()
                done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=options.work, capture_output=True, text=True)
                got = (done.stderr + done.stdout).splitlines()
                count += 1
                if not matches(want, got) or bool(done.returncode) != bool(fails):
                    failures += 1
                    print(f"{document}: $ {command}\n(exit code {done.returncode}) says\n" + "\n".join(want) + "\nbut prints\n" + "\n".join(got[:40]), file=sys.stderr)
    print(f"{count} commands, {failures} failures")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
