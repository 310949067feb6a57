"""What the C API says of layers, printed.

usage: layers.py LIBRARY BUNDLE...
"""
import ctypes as c
import sys

from kvcache_runtime import LayerInfo

lib = c.CDLL(sys.argv[1])
lib.kvcacheBundleLayerTokenScales.restype = c.c_char_p
lib.kvcacheBundleLayerCount.restype = lib.kvcacheBundleLayerScales.restype = c.c_size_t
for path in sys.argv[2:]:
    bundle = c.c_void_p()
    assert lib.kvcacheBundleOpen(path.encode(), c.byref(bundle)) == 0
    for index in range(lib.kvcacheBundleLayerCount(bundle)):
        layer = LayerInfo(c.sizeof(LayerInfo))
        assert lib.kvcacheBundleLayer(bundle, c.c_size_t(index), c.byref(layer)) == 0
        print(f"{layer.name.decode()}: {layer.query_heads} x {layer.head_dim}, {layer.rope_dim} rotary, values of {layer.v_head_dim}", end="")
        scales = lib.kvcacheBundleLayerTokenScales(bundle, c.c_size_t(index)).decode()
        if scales:
            print(f", {scales} scales of tokens", end="")
        for role in "kvqo":
            values = (c.c_float * 4)()
            count = lib.kvcacheBundleLayerScales(bundle, c.c_size_t(index), c.c_char(role.encode()), values, c.c_size_t(4))
            print(f", {role} {[round(value, 6) for value in values[:count]]}", end="")
        print()
    lib.kvcacheBundleClose(bundle)
