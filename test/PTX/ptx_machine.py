"""ctypes binding of libkvcache_ptx.so (include/kvcache-c/PTX.h)."""

import ctypes as C
import json
import os

import numpy as np


class Options(C.Structure):
    _fields_ = [
        (n, C.c_uint32)
        for n in "memcheck initcheck racecheck synccheck counters lateCopies "
        "threads quantum".split()
    ] + [("maxInstructions", C.c_uint64), ("seed", C.c_uint64), ("regions", C.c_uint32), ("reserved", C.c_uint32)]


ALL = dict(memcheck=1, initcheck=1, racecheck=1, synccheck=1, counters=1, threads=1)
FAST = dict(memcheck=1, threads=1)
NONE = dict(threads=1)


class Machine:
    def __init__(self, library=None):
        lib = C.CDLL(library or os.environ["KVCACHE_PTX_LIB"])
        lib.kvcachePtxMachineCreate.restype = C.c_void_p
        lib.kvcachePtxMachineDestroy.argtypes = [C.c_void_p]
        for name, extra in dict(LastError=[], Describe=[C.c_int], Report=[]).items():
            f = getattr(lib, "kvcachePtx" + name)
            f.restype = C.c_size_t
            f.argtypes = [C.c_void_p] + extra + [C.c_char_p, C.c_size_t]
        lib.kvcachePtxAddBuffer.restype = C.c_uint64
        lib.kvcachePtxAddBuffer.argtypes = [
            C.c_void_p, C.c_void_p, C.c_uint64, C.c_void_p, C.c_char_p, C.c_int, C.c_int]
        lib.kvcachePtxClearBuffers.argtypes = [C.c_void_p]
        lib.kvcachePtxInitialised.argtypes = [C.c_void_p, C.c_uint64, C.c_uint64, C.c_void_p]
        lib.kvcachePtxSymbol.restype = C.c_uint64
        lib.kvcachePtxSymbol.argtypes = [C.c_void_p, C.c_int, C.c_char_p]
        lib.kvcachePtxLoadModule.argtypes = [C.c_void_p, C.c_char_p, C.c_char_p]
        lib.kvcachePtxLaunch.restype = C.c_int64
        lib.kvcachePtxLaunch.argtypes = [
            C.c_void_p, C.c_int, C.c_char_p, C.c_void_p, C.c_void_p, C.c_uint32,
            C.c_void_p, C.c_void_p]
        self.lib, self.handle, self.keep = lib, C.c_void_p(lib.kvcachePtxMachineCreate()), []

    def __del__(self):
        if getattr(self, "handle", None):
            self.lib.kvcachePtxMachineDestroy(self.handle)

    def _text(self, function, *arguments):
        size = 1 << 16
        while True:
            buffer = C.create_string_buffer(size)
            needed = function(self.handle, *arguments, buffer, size)
            if needed < size:
                return buffer.value.decode()
            size = needed + 1

    def error(self):
        return self._text(self.lib.kvcachePtxLastError)

    def module(self, text, name="ptx"):
        h = self.lib.kvcachePtxLoadModule(self.handle, text.encode(), name.encode())
        if h < 0:
            raise RuntimeError(self.error())
        return h

    def describe(self, module):
        return {k["name"]: k for k in json.loads(self._text(self.lib.kvcachePtxDescribe, module))}

    def buffer(self, a, name, init=None, read_only=True, propagate=False):
        """a: numpy array, used in place. init: array of the same bytes, 0 = never
        written (None: all valid). Returns the device address."""
        assert a.flags.c_contiguous
        if init is not None:
            init = np.ascontiguousarray(init, np.uint8)
            assert init.size == a.nbytes
        self.keep.append(a)
        return self.lib.kvcachePtxAddBuffer(
            self.handle, a.ctypes.data, a.nbytes,
            init.ctypes.data if init is not None else None, name.encode(),
            int(read_only), int(propagate))

    def output(self, a, name, **options):
        """A buffer that no byte of has been written yet."""
        return self.buffer(a, name, np.zeros(a.nbytes, np.uint8), False, **options)

    def initialised(self, address, size):
        out = np.zeros(size, np.uint8)
        if self.lib.kvcachePtxInitialised(self.handle, address, size, out.ctypes.data):
            raise ValueError("not inside one buffer")
        return out

    def symbol(self, module, name):
        return self.lib.kvcachePtxSymbol(self.handle, module, name.encode())

    def clear(self):
        self.lib.kvcachePtxClearBuffers(self.handle)
        self.keep = []

    def launch(self, module, kernel, grid, block, shared, arguments, **options):
        """arguments: bytes, int (a device pointer) or numpy scalars, one per
        parameter. Returns the report (findings, counters, seconds)."""
        values = []
        for a in arguments:
            raw = a if isinstance(a, bytes) else a.to_bytes(8, "little") if isinstance(a, int) else a.tobytes()
            values.append(C.create_string_buffer(raw, len(raw)))
        pointers = (C.c_void_p * max(1, len(values)))(*[C.addressof(v) for v in values])
        three = lambda t: (C.c_uint32 * 3)(*(tuple(t) + (1,) * (3 - len(t))))
        o = Options(**(options or ALL))
        n = self.lib.kvcachePtxLaunch(
            self.handle, module, kernel.encode(), three(grid), three(block), shared,
            pointers, C.byref(o))
        if n < 0:
            raise RuntimeError(self.error())
        return json.loads(self._text(self.lib.kvcachePtxReport))

    def table(self):
        """Counts of the last launch, and of its regions, for people."""
        f = self.lib.kvcachePtxTable
        f.restype, f.argtypes = C.c_size_t, [C.c_void_p, C.c_char_p, C.c_size_t]
        return self._text(f)
