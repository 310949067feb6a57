"""The C interface through ctypes: parses a graph, runs a pipeline, reads it."""

import argparse
import ctypes as C


class StringRef(C.Structure):
    _fields_ = [("data", C.c_char_p), ("length", C.c_size_t)]


class Handle(C.Structure):
    """MlirContext, MlirModule, ...: a pointer in a struct."""

    _fields_ = [("pointer", C.c_void_p)]


class LogicalResult(C.Structure):
    _fields_ = [("value", C.c_int8)]


Callback = C.CFUNCTYPE(None, StringRef, C.c_void_p)


def text(string):
    data = string.encode()
    return StringRef(data, len(data))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    lib = C.CDLL(parser.parse_args().library)

    def call(name, result, *arguments):
        function = getattr(lib, name)
        function.restype = result
        return function(*arguments)

    registry = call("mlirDialectRegistryCreate", Handle)
    call("kvcacheRegisterCompiler", None, registry)
    call("kvcacheRegisterPasses", None)
    context = call("mlirContextCreateWithRegistry", Handle, registry, C.c_bool(False))
    call("mlirContextSetAllowUnregisteredDialects", None, context, C.c_bool(True))
    source = """
      func.func @main(%k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>) {
        %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.0.self_attn.attn", mutated = [],
            operand_names = ["key", "value"]} : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
        return
      }"""
    module = call("mlirModuleCreateParse", Handle, context, text(source))
    assert module.pointer
    manager = call("mlirPassManagerCreate", Handle, context)
    printed = []
    collect = Callback(lambda part, _: printed.append(C.string_at(part.data, part.length).decode()))
    parsed = call("mlirParsePassPipeline", LogicalResult, call("mlirPassManagerGetAsOpPassManager", Handle, manager),
                  text("builtin.module(kvcache-import{page-size=32})"), collect, None)
    assert parsed.value, "".join(printed)
    operation = call("mlirModuleGetOperation", Handle, module)
    assert call("mlirPassManagerRunOnOp", LogicalResult, manager, operation).value
    call("mlirOperationPrint", None, operation, collect, None)
    result = "".join(printed)
    assert "kvcache.cache_group @full page_size 32" in result, result
    assert "kvcache.write" in result and "vllm." not in result, result

    scale = call("kvcacheScaleGetCheckpoint", Handle, context, text("layers.0.k_scale"))
    assert call("kvcacheAttributeIsAScale", C.c_bool, scale)
    assert call("kvcacheScaleGetState", C.c_int, scale) == 1
    key = call("kvcacheScaleGetKey", StringRef, scale)
    assert C.string_at(key.data, key.length) == b"layers.0.k_scale"
    value = (C.c_float * 1)(0.25)
    scale = call("kvcacheScaleGetStatic", Handle, context, C.c_ssize_t(1), value, C.c_int(4), text(""))
    assert call("kvcacheScaleGetValue", C.c_float, scale, C.c_ssize_t(0)) == 0.25
    call("mlirPassManagerDestroy", None, manager)
    call("mlirModuleDestroy", None, module)
    call("mlirContextDestroy", None, context)
    print("passed")


if __name__ == "__main__":
    main()
