//===- Completion.cpp - Shell completion of the LLVM-free tools -----------===//

#include "Completion.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>

namespace {

/// What may stand behind an option, as arguments of bash's compgen.
std::string valuesOf(const CLI::Option &option) {
  std::string type = option.get_type_name();
  size_t open = type.find('{'), close = type.find('}');
  if (open != std::string::npos && close != std::string::npos) {
    std::string words = type.substr(open + 1, close - open - 1);
    std::replace(words.begin(), words.end(), ',', ' ');
    return "-W '" + words + "'";
  }
  if (type.rfind("FILE", 0) == 0)
    return "-f";
  if (type.rfind("DIR", 0) == 0)
    return "-d";
  return "-W ''";
}

/// The options of `app`, which is the tool (then `command` is empty) or one of
/// its commands.
struct Options {
  std::string names;  // each with its dashes, and `=` if a value follows
  std::string values; // a branch of `case $command:$option` for each value

  Options(const CLI::App &app, const std::string &command) {
    for (const CLI::Option *option : app.get_options()) {
      // Options without a group are hidden.
      if (option->get_group().empty() || !option->nonpositional())
        continue;
      bool takesValue = option->get_items_expected_max() > 0;
      std::string patterns;
      auto add = [&](const std::string &name, const char *sign) {
        names += (names.empty() ? "" : " ") + name + (takesValue ? sign : "");
        patterns += (patterns.empty() ? "" : "|") + command + ":" + name;
      };
      for (const std::string &name : option->get_lnames())
        add("--" + name, "=");
      for (const std::string &name : option->get_snames())
        add("-" + name, "");
      if (takesValue)
        values += "  " + patterns + ") values=(" + valuesOf(*option) + ") ;;\n";
    }
  }
};

void printBash(std::ostream &os, const CLI::App &app) {
  std::string tool = app.get_name(), function = "_" + tool;
  std::replace(function.begin(), function.end(), '-', '_');
  Options own(app, "");
  std::string commands, values = own.values, names;
  for (const CLI::App *command :
       app.get_subcommands([](const CLI::App *) { return true; })) {
    Options options(*command, command->get_name());
    commands += (commands.empty() ? "" : " ") + command->get_name();
    values += options.values;
    names +=
        "  " + command->get_name() + ") names='" + options.names + "' ;;\n";
  }
  os << "# bash completion of " << tool << ": eval \"$(" << tool
     << " --completion=bash)\"\n"
     << function << R"(() {
  local current=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]}
  local commands=')"
     << commands << R"(' command= names word values=()
  # bash takes --option=value apart at the sign.
  if [[ $current == = ]]; then
    current=
  elif [[ $option == = ]]; then
    option=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    if [[ " $commands " == *" $word "* ]]; then
      command=$word
      break
    fi
  done
  case $command:$option in
)" << values
     << R"(  esac
  case $command in
)" << names
     << "  *) names='" << own.names << R"(' ;;
  esac
  if ((${#values[@]} == 0)) && [[ $current == -* ]]; then
    values=(-W "$names")
  elif ((${#values[@]} == 0)) && [[ -n $commands && -z $command ]]; then
    values=(-W "$commands")
  elif ((${#values[@]} == 0)); then
    values=(-f)
  fi
  [[ ${values[0]} == -W ]] || compopt -o filenames 2>/dev/null
  # In a list with commas the last word is completed.
  mapfile -t COMPREPLY < <(compgen "${values[@]}" \
    -P "${current%"${current##*,}"}" -- "${current##*,}")
  [[ ${COMPREPLY-} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -F )"
     << function << " " << tool << "\n";
}

} // namespace

void kvcache::addCompletionOption(CLI::App &app) {
  app.add_option_function<std::string>(
         "--completion",
         [&app](const std::string &) {
           printBash(std::cout, app);
           throw CLI::Success();
         },
         "Print a completion script, for eval in your shell")
      ->type_name("SHELL")
      ->check(CLI::IsMember({"bash"}));
}
