#!/usr/bin/env bash
# Checks kernels, runtime and PTX machine on a card, with what was built elsewhere.
#
#   utils/gpu-check.sh pack BUILD KIT [small]    here: tools, libraries and
#                                                bundles into one folder
#   KIT/gpu-check.sh run [--device=cuda|sim] [--driver=FILE] [--out=DIR]
#                                                there: needs the driver, bash
#                                                and python3
#
# run compares the PTX machine with the card opcode by opcode, every kernel
# variant with double precision (NaN wherever a kernel has no business) and its
# cache codes with the machine's, replays launches that were frozen at other
# lengths, runs compute-sanitizer on a few where there is one, and measures. It
# ends within 8 minutes; what did not fit is said and counts as a failure. A
# table comes last, then one line of JSON. --device=sim is the dry run: the same
# steps on the PTX machine.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case ${1:-} in
pack | run) exec python3 -B "$here/gpu_check.py" "$@" ;;
*) sed -n '2,17p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//' && exit 2 ;;
esac
