#pragma once
// Named intermediate values of one forward, for golden tests and for bisecting a difference between
// two implementations. Owned by the caller; one forward at a time writes to it; off means a null
// pointer and costs nothing.
//
//   Trace trace("layers.1.");          // everything of layer 1
//   options.trace = &trace;
//   at::Tensor post = trace.at("layers.1.hc_attn.post");
//
// Points (prefix "layers.N." or "mtp.N."; rows are the flat tokens of the step, [B, ...] per group;
// a step of several groups appends "#g" from its second group on for the per-group points):
//   hc_attn.post, hc_attn.comb, hc_ffn.post, hc_ffn.comb, streams (after the block)
//   attn.input, attn.q, attn.kv, attn.output
//   attn.index_query; per group: attn.entries, attn.index_keys, attn.index_scores, attn.picks,
//   attn.context ffn.input, ffn.scores, ffn.experts, ffn.weights, ffn.output
// and "embedding", "hidden", "logits", "mtp.0.hidden", "mtp.0.logits" without a prefix; the last
// four have the rows whose logits were wanted ([B, T, V] logits of a training forward are flat here
// too).

#include <map>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

namespace baleen::model {

class Trace {
 public:
  /// Keeps the points whose name begins with `prefix`.
  explicit Trace(std::string prefix = "") : prefix_(std::move(prefix)) {}

  bool wants(const std::string& name) const { return name.starts_with(prefix_); }
  /// Keeps a detached copy under `name`, replacing an earlier one.
  void capture(const std::string& name, const at::Tensor& value);

  /// Aborts, naming the points there are, when `name` was not captured.
  const at::Tensor& at(const std::string& name) const;
  bool contains(const std::string& name) const { return values_.contains(name); }
  const std::map<std::string, at::Tensor>& values() const { return values_; }
  void clear() { values_.clear(); }

 private:
  std::string prefix_;
  std::map<std::string, at::Tensor> values_;
};

}  // namespace baleen::model
