//===- DynamicScaleRemainders.cpp - Traces of run-time scales -------------===//

#include "DynamicScaleRemainders.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mlir::kvcache;

// vLLM before July 2026.
static constexpr StringLiteral kOptions[] = {"calculate_kv_scales",
                                             "calc_kv_scales"};
static constexpr StringLiteral kWords[] = {
    "maybe_calc_kv_scales", "maybe_calc_kv_scales_fake", "calc_kv_scales_fake",
    "Q_SCALE_CONSTANT",     "K_SCALE_CONSTANT",          "V_SCALE_CONSTANT"};
static constexpr StringLiteral kRanges[] = {"q_range", "k_range", "v_range"};
static constexpr StringLiteral kDowngrade = "cudagraph_downgrade";

static bool isWordChar(char c) { return llvm::isAlnum(c) || c == '_'; }

/// Without leading underscores and without the number that made it unique.
static StringRef trimWord(StringRef word) {
  word = word.ltrim('_');
  StringRef digits = word;
  while (!digits.empty() && llvm::isDigit(digits.back()))
    digits = digits.drop_back();
  if (digits.size() != word.size() && digits.consume_back("_"))
    return digits;
  return word;
}

static bool isDynamicScaleWord(StringRef word) {
  word = trimWord(word);
  if (llvm::is_contained(kOptions, word) || llvm::is_contained(kWords, word))
    return true;
  for (StringRef range : kRanges) {
    StringRef owner = word;
    if (!owner.consume_back(range))
      continue;
    // Exporters flatten module paths: "layers_0_self_attn_attn__q_range".
    owner = owner.rtrim('_');
    bool isFlattened =
        word.size() > owner.size() + range.size() &&
        (owner.ends_with("attn") || owner.ends_with("attention") ||
         (!owner.empty() && llvm::isDigit(owner.back())));
    if (owner.empty() || isFlattened)
      return true;
  }
  return false;
}

/// True if `predicate` holds for a word of `text`.
static bool anyWord(StringRef text,
                    llvm::function_ref<bool(StringRef)> predicate) {
  std::string spelled = text.str();
  std::replace(spelled.begin(), spelled.end(), '-', '_');
  StringRef rest = spelled;
  while (!rest.empty()) {
    rest = rest.drop_until(isWordChar);
    StringRef word = rest.take_while(isWordChar);
    if (!word.empty() && predicate(word))
      return true;
    rest = rest.drop_front(word.size());
  }
  return false;
}

bool mlir::kvcache::namesDynamicScales(StringRef text) {
  // Cheap, as every string of a module is asked.
  if (!text.contains("scales") && !text.contains("_range") &&
      !text.contains("_SCALE_CONSTANT"))
    return false;
  return anyWord(text, isDynamicScaleWord);
}

bool mlir::kvcache::isDynamicScaleOption(StringRef name) {
  return anyWord(name, [](StringRef word) {
    return llvm::is_contained(kOptions, trimWord(word));
  });
}

bool mlir::kvcache::isDynamicScaleAttr(StringRef name) {
  return name == kDowngrade || name.ends_with(".cudagraph_downgrade") ||
         namesDynamicScales(name);
}

std::optional<ForeignCall>
mlir::kvcache::matchDynamicScaleCall(Operation *op,
                                     SymbolTableCollection &symbols) {
  if (std::optional<ForeignCall> call = ForeignCall::match(op, symbols)) {
    StringRef name = StringRef(call->getName()).rsplit('.').second;
    if (name == "maybe_calc_kv_scales" || name == "calc_kv_scales")
      return call;
  }
  return std::nullopt;
}

bool mlir::kvcache::holdsDynamicScaleName(Attribute attr) {
  if (auto text = dyn_cast<StringAttr>(attr))
    return namesDynamicScales(text.getValue());
  if (auto symbol = dyn_cast<SymbolRefAttr>(attr))
    return namesDynamicScales(symbol.getLeafReference().getValue());
  if (auto array = dyn_cast<ArrayAttr>(attr))
    return llvm::any_of(array, holdsDynamicScaleName);
  if (auto dict = dyn_cast<DictionaryAttr>(attr))
    return llvm::any_of(dict, [](NamedAttribute entry) {
      return isDynamicScaleAttr(entry.getName()) ||
             holdsDynamicScaleName(entry.getValue());
    });
  return false;
}

bool mlir::kvcache::isPositionalList(StringRef attrName) {
  return llvm::is_contained({"operand_names", "mutated", "torch.operands",
                             "torch.mutated", "arg_attrs", "res_attrs"},
                            attrName);
}

void mlir::kvcache::findDynamicScaleRemainders(
    ModuleOp module, SmallVectorImpl<DynamicScaleRemainder> &remainders) {
  SymbolTableCollection symbols;
  module.walk([&](Operation *op) {
    auto add = [&](const Twine &what) {
      remainders.push_back({op, what.str()});
    };
    if (isa<CalculateScalesOp>(op))
      return add("'kvcache.calculate_scales' calculates scales at run time");
    if (auto call = matchDynamicScaleCall(op, symbols))
      return add("'" + call->getName() + "' calculates scales at run time");
    if (namesDynamicScales(op->getName().getStringRef()))
      add("op '" + op->getName().getStringRef() +
          "' is named after the calculation of scales");
    // The dialect's own ops hold layer names and checkpoint keys.
    bool isOwn = isa_and_nonnull<KVCacheDialect>(op->getDialect());
    for (NamedAttribute attr : op->getAttrs()) {
      StringRef name = attr.getName();
      if (name == SymbolTable::getSymbolAttrName()) {
        auto symbol = dyn_cast<StringAttr>(attr.getValue());
        if (symbol && namesDynamicScales(symbol.getValue()))
          add("symbol @" + symbol.getValue() +
              " belongs to the calculation of scales");
      } else if (isDynamicScaleAttr(name)) {
        add("attribute '" + name + "' belongs to the calculation of scales");
      } else if (!isOwn && holdsDynamicScaleName(attr.getValue())) {
        std::string text;
        llvm::raw_string_ostream(text) << attr.getValue();
        add("attribute '" + name +
            "' names the calculation of scales: " + text);
      }
    }
  });
}
