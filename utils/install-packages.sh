#!/bin/sh
# Installs the Debian or Ubuntu packages that the build needs and that are
# missing: as root; otherwise prints the line to type.
set -eu

packages="cmake ninja-build clang-22 lld-22 llvm-22-dev llvm-22-tools
  libmlir-22-dev mlir-22-tools libsimdjson-dev libcli11-dev libmd-dev libgtest-dev
  libzip-dev zlib1g-dev libzstd-dev python3-venv"

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "install-packages: this is not a Debian system; what the build needs is in README.md" >&2
  exit 0
fi
missing=""
for package in $packages; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

line="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -ne 0 ]; then
  echo "Some packages are missing. Install them with:" >&2
  echo "  sudo $line" >&2
  exit 1
fi
echo "Installing:$missing"
if ! apt-cache show llvm-22-dev >/dev/null 2>&1; then
  apt-get update -qq
fi
if ! apt-cache show llvm-22-dev >/dev/null 2>&1; then
  echo "LLVM 22 packages (llvm-22-dev, libmlir-22-dev, ...) are not in this machine's package sources." >&2
  echo "Add a source that has them, then run make again." >&2
  exit 1
fi
DEBIAN_FRONTEND=noninteractive $line
