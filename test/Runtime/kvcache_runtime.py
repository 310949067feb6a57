"""libkvcache_runtime.so through ctypes, as the tests here use it."""
import ctypes as c

import numpy as np

ALL = c.c_size_t(-1)


class BufferInfo(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("role", c.c_char_p), ("element_type", c.c_char_p),
                ("access", c.c_char_p), ("owner", c.c_char_p), ("rank", c.c_uint32), ("shape", c.c_int64 * 8),
                ("strides", c.c_int64 * 8), ("dynamic_dims", c.c_uint64), ("bytes", c.c_uint64),
                ("view_of", c.c_char_p), ("view_offset", c.c_uint64)]


class LayerInfo(c.Structure):
    _fields_ = [("size", c.c_size_t), ("id", c.c_char_p), ("name", c.c_char_p), ("cache", c.c_char_p),
                ("element_type", c.c_char_p), ("layout", c.c_char_p), ("query_heads", c.c_int64),
                ("kv_heads", c.c_int64), ("head_dim", c.c_int64), ("page_size", c.c_int64),
                ("softmax_scale", c.c_float), ("k_scale", c.c_float), ("v_scale", c.c_float),
                ("k_provenance", c.c_char_p), ("k_key", c.c_char_p), ("v_provenance", c.c_char_p),
                ("v_key", c.c_char_p), ("compatibility", c.c_char_p), ("k_scale_count", c.c_uint32),
                ("v_scale_count", c.c_uint32), ("rope_dim", c.c_int64), ("v_head_dim", c.c_int64)]


class CudaOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("context", c.c_void_p), ("driver", c.c_char_p), ("programmatic", c.c_int32)]


class Failure(Exception):
    pass


class Runtime:
    """One program of a bundle on one device, with memory for all its buffers: of its own, or that of `beside`, another
    program of the same bundle."""

    def __init__(self, library, bundle, cuda=None, program=None, beside=None):
        self.lib = c.CDLL(library)
        for name in ("kvcacheLastError", "kvcacheStatusName", "kvcacheProgramChip", "kvcacheProgramCode",
                     "kvcacheDeviceName", "kvcacheBundleProgramName"):
            getattr(self.lib, name).restype = c.c_char_p
        self.lib.kvcacheProgramWorkspaceBytes.restype = c.c_uint64
        self.lib.kvcacheBundleProgramForBatch.restype = c.c_int64
        for name in ("kvcacheBundleBufferCount", "kvcacheProgramSegmentCount", "kvcacheProgramLaunchCount",
                     "kvcacheGraphLaunchBytes"):
            getattr(self.lib, name).restype = c.c_size_t
        self.bundle, self.device = c.c_void_p(), c.c_void_p()
        self.program, self.instance, self.graph = c.c_void_p(), c.c_void_p(), c.c_void_p()
        self.owner = beside is None
        if beside:
            self.bundle, self.device = beside.bundle, beside.device
        else:
            self.open(bundle, cuda)
        self.call("kvcacheProgramCreate", self.bundle, self.device, program.encode() if program else None, None,
                  c.byref(self.program))
        self.call("kvcacheInstanceCreate", self.program, c.byref(self.instance))
        self.buffers, self.addresses = {}, {}
        for index in range(self.lib.kvcacheBundleBufferCount(self.bundle)):
            info = BufferInfo(c.sizeof(BufferInfo))
            self.call("kvcacheBundleBuffer", self.bundle, c.c_size_t(index), c.byref(info))
            self.buffers[info.name.decode()] = info
            if info.view_of or info.owner != b"caller":
                continue
            name = info.name.decode()
            self.addresses[name] = beside.addresses[name] if beside else self.allocate(info.bytes)
            self.call("kvcacheInstanceBind", self.instance, c.c_size_t(index),
                      c.c_uint64(self.addresses[info.name.decode()]), c.c_uint64(info.bytes))
        self.workspace_bytes = self.lib.kvcacheProgramWorkspaceBytes(self.program)
        self.workspace = self.allocate(self.workspace_bytes)
        self.call("kvcacheInstanceBindWorkspace", self.instance, c.c_uint64(self.workspace),
                  c.c_uint64(self.workspace_bytes), None)

    def open(self, bundle, cuda):
        self.call("kvcacheBundleOpen", str(bundle).encode(), c.byref(self.bundle))
        if cuda:  # (context, driver)
            options = CudaOptions(c.sizeof(CudaOptions), cuda[0], cuda[1].encode() if cuda[1] else None, 0)
            self.call("kvcacheDeviceCreateCuda", c.byref(options), c.byref(self.device))
        else:
            self.call("kvcacheDeviceCreateMachine", None, c.byref(self.device))

    def call(self, name, *arguments):
        if status := getattr(self.lib, name)(*arguments):
            status = self.lib.kvcacheStatusName(status).decode()
            raise Failure(f"{status}: {self.lib.kvcacheLastError().decode()}")

    def program_for_batch(self, sequences, tokens):
        """Name of the program with room for a step, or None."""
        index = self.lib.kvcacheBundleProgramForBatch(self.bundle, None, c.c_int64(sequences), c.c_int64(tokens))
        return None if index < 0 else self.lib.kvcacheBundleProgramName(self.bundle, c.c_size_t(index)).decode()

    def allocate(self, size):
        address = c.c_uint64()
        self.call("kvcacheDeviceAllocate", self.device, c.c_uint64(size), c.byref(address))
        return address.value

    def set(self, name, array):
        array = np.ascontiguousarray(array)
        assert array.nbytes <= self.buffers[name].bytes, name
        self.call("kvcacheDeviceCopyIn", self.device, c.c_uint64(self.addresses[name]),
                  array.ctypes.data_as(c.c_void_p), c.c_uint64(array.nbytes))

    def get(self, name):
        out = np.empty(self.buffers[name].bytes, np.uint8)
        self.call("kvcacheDeviceCopyOut", self.device, out.ctypes.data_as(c.c_void_p),
                  c.c_uint64(self.addresses[name]), c.c_uint64(out.nbytes))
        return out

    def counters(self, manifest):
        """All arrival counters in the workspace, in the order in which it is laid out."""
        out = np.empty(self.workspace_bytes, np.uint8)
        self.call("kvcacheDeviceCopyOut", self.device, out.ctypes.data_as(c.c_void_p), c.c_uint64(self.workspace),
                  c.c_uint64(out.nbytes))
        return out

    def freeze(self):
        self.call("kvcacheInstanceInstantiateGraph", self.instance, ALL, c.byref(self.graph))

    def frozen_bytes(self):
        result = []
        for i in range(self.lib.kvcacheProgramLaunchCount(self.program, ALL)):
            data = (c.c_uint8 * 512)()
            size = self.lib.kvcacheGraphLaunchBytes(self.graph, c.c_size_t(i), data, c.c_size_t(512))
            result.append(bytes(data[:size]))
        return result

    def replay(self):
        self.call("kvcacheGraphReplay", self.graph, None)
        self.call("kvcacheDeviceSynchronize", self.device, None)

    def enqueue(self):
        self.call("kvcacheInstanceEnqueue", self.instance, ALL, None)
        self.call("kvcacheDeviceSynchronize", self.device, None)

    def close(self):
        self.lib.kvcacheGraphDestroy(self.graph)
        self.lib.kvcacheInstanceDestroy(self.instance)
        self.lib.kvcacheProgramDestroy(self.program)
        if not self.owner:
            return
        self.lib.kvcacheDeviceDestroy(self.device)
        self.lib.kvcacheBundleClose(self.bundle)
