#include "rl/parity.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/check.h"

namespace baleen::rl {
namespace {

struct PointHint {
  std::string_view point;  // of a layer, or of the whole
  std::string_view cause;
};

// In the order of the forward.
constexpr std::array<PointHint, 20> kInLayer = {{
    {"hc_attn.post", "mixing in reduced precision, its epsilon, number of Sinkhorn iterations"},
    {"hc_attn.comb", "mixing in reduced precision, its epsilon, number of Sinkhorn iterations"},
    {"attn.input", "norm: weight, epsilon, order of its sum"},
    {"attn.q", "rotation base or YaRN, format or scales of wq_a and wq_b"},
    {"attn.kv", "rotation base or YaRN, point of rounding, scale type of wkv or of the rows"},
    {"attn.entries", "carry half at a border of chunks or ranks, position bias, order of pooling"},
    {"attn.index_query", "rotation or Hadamard on one side, format of the indexer"},
    {"attn.index_keys", "carry half at a border, Hadamard on one side, format of the indexer"},
    {"attn.index_scores", "type of the scores, order of the heads"},
    {"attn.picks", "tie rule, or picks of a record that is another sample's or older"},
    {"attn.context", "order of the keys, sink, split of the sum"},
    {"attn.output", "groups of the output projection, its format, order of its sum"},
    {"hc_ffn.post", "mixing in reduced precision, its epsilon"},
    {"hc_ffn.comb", "mixing in reduced precision, its epsilon"},
    {"ffn.input", "norm: weight, epsilon, order of its sum"},
    {"ffn.scores", "type of the router's scores"},
    {"ffn.experts", "bias that was not synchronised, tie rule, or a record that does not fit"},
    {"ffn.weights", "normalisation of the chosen scores, epsilon of its denominator"},
    {"ffn.output", "scales of the experts, clamp, order in which experts are added"},
    {"streams", "residual mixing"},
}};

/// Place of a point in the forward, layers and their operators in order; -1: none known.
int64_t order_of(const std::string& point) {
  constexpr int64_t kPerLayer = 100;
  if (point == "embedding") {
    return 0;
  }
  constexpr int64_t kBehind = int64_t{1} << 40;
  for (const auto& [name, order] : {std::pair<std::string_view, int64_t>{"hidden", kBehind},
                                    {"logits", kBehind + 1},
                                    {"logprob", kBehind + 2}}) {
    if (point == name) {
      return order;
    }
  }
  constexpr std::string_view kLayers = "layers.";
  if (!point.starts_with(kLayers)) {
    return -1;
  }
  const std::size_t dot = point.find('.', kLayers.size());
  const int64_t layer = std::stoll(point.substr(kLayers.size(), dot - kLayers.size()));
  const std::string_view rest = std::string_view(point).substr(dot + 1);
  for (std::size_t i = 0; i < kInLayer.size(); ++i) {
    if (kInLayer[i].point == rest) {
      return (layer + 1) * kPerLayer + static_cast<int64_t>(i);
    }
  }
  return -1;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return false;
  }
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return std::equal(static_cast<const uint8_t*>(x.const_data_ptr()),
                    static_cast<const uint8_t*>(x.const_data_ptr()) + x.nbytes(),
                    static_cast<const uint8_t*>(y.const_data_ptr()));
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() != b.numel()) {
    return static_cast<double>(std::max(a.numel(), b.numel()));
  }
  if (a.scalar_type() == at::kBool || a.scalar_type() == at::kLong) {
    return static_cast<double>(a.ne(b).sum().item<int64_t>());
  }
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

void compare_point(const std::vector<at::Tensor>& a,
                   const std::vector<at::Tensor>& b,
                   int64_t sample,
                   PointDifference& out) {
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (!a[t].defined() && !b[t].defined()) {
      continue;
    }
    ++out.of_tokens;
    const bool both = a[t].defined() && b[t].defined();
    if (both && same_bits(a[t], b[t])) {
      continue;
    }
    if (out.num_tokens++ == 0) {
      out.sample = sample;
      out.position = static_cast<int64_t>(t);
    }
    out.largest = std::max(out.largest, both ? distance(a[t], b[t]) : 0.0);
  }
}

std::string layer_of(const std::string& point) {
  const std::size_t end = point.starts_with("layers.") ? point.find('.', 7) : point.size();
  return point.substr(0, end);
}

}  // namespace

std::optional<PointDifference> ParityReport::first() const {
  for (const PointDifference& point : points) {
    if (point.num_tokens > 0) {
      return point;
    }
  }
  return std::nullopt;
}

ParityReport compare_points(const std::vector<TokenPoints>& a, const std::vector<TokenPoints>& b) {
  BALEEN_CHECK(a.size() == b.size(), "{} and {} texts", a.size(), b.size());
  ParityReport report;
  std::map<std::string, PointDifference> by_point;
  for (std::size_t sample = 0; sample < a.size(); ++sample) {
    BALEEN_CHECK(a[sample].num_tokens() == b[sample].num_tokens(), "text {}", sample);
    report.num_tokens += a[sample].num_tokens();
    for (const auto& [point, tokens] : a[sample].points()) {
      if (!b[sample].contains(point)) {
        report.missing.push_back(point);
        continue;
      }
      PointDifference& difference = by_point[point];
      difference.point = point;
      difference.order = order_of(point);
      compare_point(tokens, b[sample].at(point), static_cast<int64_t>(sample), difference);
    }
    for (const auto& [point, tokens] : b[sample].points()) {
      if (!a[sample].contains(point)) {
        report.missing.push_back(point);
      }
    }
  }
  for (auto& [point, difference] : by_point) {
    report.points.push_back(std::move(difference));
  }
  std::sort(report.points.begin(),
            report.points.end(),
            [](const PointDifference& x, const PointDifference& y) { return x.order < y.order; });
  std::sort(report.missing.begin(), report.missing.end());
  report.missing.erase(std::unique(report.missing.begin(), report.missing.end()),
                       report.missing.end());
  return report;
}

std::string_view parity_hint(std::string_view point) {
  for (const auto& [name, cause] :
       {std::pair<std::string_view, std::string_view>{
            "embedding", "token ids, or an embedding that was not synchronised"},
        {"hidden", "collapse of the streams, final norm"},
        {"logits", "type of the output matrix, padding of the vocabulary"},
        {"logprob", "temperature, shift of the targets, support of the distribution"}}) {
    if (point == name) {
      return cause;
    }
  }
  for (const PointHint& hint : kInLayer) {
    if (point.ends_with(hint.point)) {
      return hint.cause;
    }
  }
  return "unknown";
}

std::string parity_text(const ParityReport& report, std::string_view a, std::string_view b) {
  const std::optional<PointDifference> first = report.first();
  if (!first && report.missing.empty()) {
    return fmt::format("{} = {}: {} tokens, {} points, no bit differs\n",
                       a,
                       b,
                       report.num_tokens,
                       report.points.size());
  }
  std::string text = fmt::format("{} and {} over {} tokens\n", a, b, report.num_tokens);
  text += fmt::format(
      "  {:<28} {:>10} {:>12}  {}\n", "first difference of", "tokens", "largest", "where");
  std::string layer;
  for (const PointDifference& point : report.points) {
    if (point.num_tokens == 0 || layer_of(point.point) == layer) {
      continue;
    }
    layer = layer_of(point.point);
    text += fmt::format("  {:<28} {:>10} {:>12.3e}  text {}, position {}\n",
                        point.point,
                        fmt::format("{}/{}", point.num_tokens, point.of_tokens),
                        point.largest,
                        point.sample,
                        point.position);
  }
  for (const std::string& point : report.missing) {
    text += fmt::format("  {:<28} on one side alone\n", point);
  }
  if (first) {
    text += fmt::format("first: {} (usual causes: {})\n", first->point, parity_hint(first->point));
  }
  return text;
}

}  // namespace baleen::rl
