"""Checks manifests against docs/manifest.schema.json, and the schema against the reader.

  schema.py SCHEMA KVCACHE_RUN BUNDLE...

The validator knows the words of JSON Schema that the file uses and fails on any other. Then members are taken out,
added and given other types at random places: the reader must refuse whatever the schema refuses.
"""
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

WORDS = {"$schema", "$defs", "$ref", "title", "description", "type", "additionalProperties", "required", "properties",
         "items", "minItems", "maxItems", "enum", "const", "pattern", "minimum", "minLength", "oneOf"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_type(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


class Schema:
    def __init__(self, root):
        self.root = root

    def errors(self, value, rule=None, path="$"):
        rule = self.root if rule is None else rule
        assert not set(rule) - WORDS, f"{path}: the validator does not know {set(rule) - WORDS}"
        if "$ref" in rule:
            return self.errors(value, self.root["$defs"][rule["$ref"].removeprefix("#/$defs/")], path)
        if "oneOf" in rule:
            good = sum(not self.errors(value, option, path) for option in rule["oneOf"])
            return [] if good == 1 else [f"{path}: fits {good} of the alternatives"]
        kinds = rule.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds and not any(is_type(value, kind) for kind in kinds):
            return [f"{path}: expected {kinds}, found {value!r:.40}"]
        if "const" in rule and value != rule["const"] or "enum" in rule and value not in rule["enum"]:
            return [f"{path}: unexpected {value!r:.40}"]
        found = []
        if isinstance(value, str):
            if "pattern" in rule and not re.search(rule["pattern"], value) or len(value) < rule.get("minLength", 0):
                found.append(f"{path}: {value!r:.40} does not fit")
        if isinstance(value, int) and value < rule.get("minimum", value):
            found.append(f"{path}: {value} is too small")
        if isinstance(value, list):
            if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)):
                found.append(f"{path}: {len(value)} items")
            for i, item in enumerate(value):
                found += self.errors(item, rule.get("items", {}), f"{path}[{i}]")
        if isinstance(value, dict):
            found += [f"{path}: lacks {key}" for key in rule.get("required", []) if key not in value]
            for key, item in value.items():
                known = rule.get("properties", {}).get(key, rule.get("additionalProperties", {}))
                found += [f"{path}: unknown {key}"] if known is False else self.errors(item, known, f"{path}.{key}")
        return found


def places(value, at=()):
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], at + (key,))
    elif isinstance(value, list):
        for i in range(min(len(value), 2)):
            yield from places(value[i], at + (i,))


def damage(manifest, rng):
    result = copy.deepcopy(manifest)
    at = rng.choice([p for p in places(manifest) if p])
    holder = result
    for key in at[:-1]:
        holder = holder[key]
    how = rng.randrange(3)
    if how == 0 and isinstance(holder, dict):
        del holder[at[-1]]
    elif how == 1 and isinstance(holder[at[-1]], dict):
        holder[at[-1]]["surprise"] = 1
    else:
        holder[at[-1]] = rng.choice([None, -7, 1.5, "", "x", [], {}, True])
    return result, at


def main():
    with open(sys.argv[1]) as f:
        schema = Schema(json.load(f))
    rng = random.Random(5)
    refused = 0
    for bundle in sys.argv[3:]:
        with open(os.path.join(bundle, "manifest.json")) as f:
            manifest = json.load(f)
        errors = schema.errors(manifest)
        assert not errors, f"{bundle}: {errors[:5]}"
        with tempfile.TemporaryDirectory() as folder:
            copied = os.path.join(folder, "damaged.kvb")
            shutil.copytree(bundle, copied)
            for _ in range(60):
                damaged, at = damage(manifest, rng)
                if not schema.errors(damaged):
                    continue
                with open(os.path.join(copied, "manifest.json"), "w") as f:
                    json.dump(damaged, f)
                run = subprocess.run([sys.argv[2], copied, "--lengths=0", "--quiet"], capture_output=True, text=True)
                assert run.returncode == 1 and "manifest.json" in run.stderr, (at, run.returncode, run.stderr[:300])
                refused += 1
    print(f"{len(sys.argv) - 3} manifests fit the schema; {refused} damaged ones are refused by schema and reader")


if __name__ == "__main__":
    main()
