#include "text/detokenizer.h"

#include "text/utf8.h"

namespace baleen::text {

void Detokenizer::push(std::string_view token_bytes, std::string& out) {
  held_.append(token_bytes);
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Kind::kIncomplete) {
      break;
    }
    out.append(step.kind == Utf8Kind::kCharacter ? rest.substr(0, step.num_bytes)
                                                 : kReplacementCharacter);
    rest.remove_prefix(step.num_bytes);
  }
  held_.erase(0, held_.size() - rest.size());
}

void Detokenizer::flush(std::string& out) {
  if (!held_.empty()) {
    out.append(kReplacementCharacter);
    held_.clear();
  }
}

}  // namespace baleen::text
