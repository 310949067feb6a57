"""ptx_conformance.py with a device that computes some opcodes wrongly: each must be reported.

  planted_card.py UTILS LIBRARY PTX ...
"""
import sys

sys.path.insert(0, sys.argv[1])
import ptx_conformance as conformance

# What each of them does to the 64-bit words of its results: an error that a float comparison must not forgive, one
# too large for an approximation, fragments in another order.
FAULTS = {"add.s32": lambda words: [w ^ 1 for w in words],
          "cvt.rn.f16x2.e4m3x2": lambda words: [w + (1 << 16) for w in words],
          "ex2.approx.ftz.f32": lambda words: [w + 32 if 0 < w < 0x7F000000 else w for w in words],
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": lambda words: words[1:] + words[:1]}
made = {}
plain_test, plain_run = conformance.Test.__init__, conformance.Machine.run


def remember(test, number, instruction):
    plain_test(test, number, instruction)
    made[test.name] = instruction.opcode


def run(machine, name, data, size):
    out = plain_run(machine, name, data, size)
    fault = FAULTS.get(made[name]) if machine.order else None  # the device, not the machine
    if not fault:
        return out
    words = [int.from_bytes(out[i:i + 8], "little") for i in range(0, len(out), 8)]
    return b"".join((w & (1 << 64) - 1).to_bytes(8, "little") for w in fault(words[:-1]) + words[-1:])


conformance.Test.__init__, conformance.Machine.run = remember, run
sys.argv = ["ptx_conformance.py", *sys.argv[3:], f"--machine={sys.argv[2]}"]
conformance.main()
