#include "model/trace.h"

#include "base/check.h"

namespace baleen::model {

void Trace::capture(const std::string& name, const at::Tensor& value) {
  if (wants(name) && value.defined()) {
    values_[name] = value.detach().clone();
  }
}

const at::Tensor& Trace::at(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    std::string known;
    for (const auto& [other, value] : values_) {
      known += (known.empty() ? "" : ", ") + other;
    }
    BALEEN_CHECK(false, "no trace point {}; there are: {}", name, known);
  }
  return found->second;
}

}  // namespace baleen::model
