"""Writes programs of torch.export with one fault each, made of a good one."""

import copy
import json
import pathlib
import sys
import zipfile


def main():
    source, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    plain = json.loads((source / "llama.dyn.json").read_text())
    archive = (source / "llama.dyn.v2.pt2").read_bytes()
    with zipfile.ZipFile(source / "llama.dyn.v2.pt2") as good:
        text = good.read("llama.dyn.v2/models/model.json")
    functional = json.loads(text)

    def save(name, document, change):
        document = copy.deepcopy(document)
        change(document, document["graph_module"]["graph"])
        (out / name).write_text(json.dumps(document))

    def attention(graph):
        return next(node for node in graph["nodes"] if node["target"].endswith("auto_functionalized_v2"))

    def replace(node, prefix, arguments):
        node["inputs"] = [entry for entry in node["inputs"] if not entry["name"].startswith(prefix)]
        node["inputs"] += [{"name": name, "arg": arg, "kind": 2} for name, arg in arguments.items()]

    (out / "text.json").write_text("a program")
    (out / "list.json").write_text("[]")
    (out / "deep.json").write_text("[" * 300000)
    save("version.json", plain, lambda document, graph: document["schema_version"].update(major=7))
    save("undefined.json", plain, lambda document, graph: graph["nodes"][1]["inputs"][0].update(arg={"as_tensor": {"name": "nothing"}}))
    save("dtype.json", plain, lambda document, graph: graph["tensor_values"]["args_0"].update(dtype=99))
    save("kind.json", plain, lambda document, graph: graph["nodes"][1]["inputs"][0].update(arg={"as_graph": {}}))
    save("wrapper.json", functional, lambda document, graph: attention(graph).update(target="torch.ops.higher_order.cond"))
    save("base.json", functional, lambda document, graph: replace(attention(graph), "_output_base", {"_output_base_index": {"as_int": 1}}))
    save("bases.json", functional, lambda document, graph: replace(attention(graph), "_all_bases", {"_all_bases": {"as_tensors": [{"name": "sym_size_int_2"}]}}))

    def lose_names(document, graph, name="vllm_ops.LayerName"):
        for node in graph["nodes"]:
            for entry in node["inputs"]:
                if entry["name"] == "layer_name":
                    entry["arg"] = {"as_custom_obj": {"name": "_custom_obj_0", "class_fqn": name}}

    save("opaque.json", plain, lose_names)
    save("class.json", plain, lambda document, graph: lose_names(document, graph, 'a"> b'))
    # 2^63 * 2 elements are none, as a product of 64 bits.
    huge = [{"as_int": 2**62}, {"as_int": 4}]
    save("huge.json", functional, lambda document, graph: replace(attention(graph), "_output_s", {"_output_size": {"as_sym_ints": huge}, "_output_stride": {"as_sym_ints": [{"as_int": 4}, {"as_int": 1}]}, "_output_storage_offset": {"as_int": 0}}))
    save("strided.json", functional, lambda document, graph: replace(attention(graph), "_output_storage", {"_output_storage_offset": {"as_int": 64}}))

    def slice_output(document, graph):
        replace(attention(graph), "_output_s", {"_output_slice_dim": {"as_int": 1}, "_output_slice_start": {"as_int": 0}, "_output_slice_end": {"as_int": 128}})

    save("sliced.json", functional, slice_output)

    for name, models in {"empty.pt2": ["a/data.json"], "several.pt2": ["a/models/model.json", "b/models/model.json"]}.items():
        with zipfile.ZipFile(out / name, "w") as file:
            for model in models:
                file.writestr(model, text)
    with zipfile.ZipFile(out / "compressed.pt2", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/models/model.json", text)
    position = archive.index(b'"graph_module"')
    (out / "damaged.pt2").write_bytes(archive[:position] + b"X" + archive[position + 1 :])
    (out / "cut.pt2").write_bytes(archive[: len(archive) // 2])


if __name__ == "__main__":
    main()
