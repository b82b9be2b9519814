// The tables of the replay study.
#include <algorithm>

#include <fmt/format.h>

#include "rl/replay_study.h"

namespace baleen::rl {

std::string study_text(const StudyReport& report) {
  const StudyConfig& config = report.config;
  std::string text = fmt::format(
      "Length {}, {} texts, seed {}. Stored per token: {:.2f} bytes of "
      "picks, {:.2f} of routes.\n\n",
      config.length,
      config.num_texts,
      config.seed,
      report.pick_bytes_per_token,
      report.route_bytes_per_token);
  text += "Step 1, Jaccard index by layer: decode and prefill";
  for (const double value : report.decode_jaccard) {
    text += fmt::format(" {:.4f}", value);
  }
  text += ", decode and trainer";
  for (const double value : report.trainer_jaccard) {
    text += fmt::format(" {:.4f}", value);
  }
  text +=
      "\n\n| rollout / trainer | replay | mean abs | ± | p99 | max | k3 | extreme | before | "
      "against "
      "| 95 % | routes | picks |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const DriftCell& cell : report.drift) {
    const bool compared = cell.difference_error > 0.0 || cell.difference != 0.0;
    text += fmt::format(
        "| {} | {} | {:.2e} | {:.0e} | {:.2e} | {:.3f} | {:.2e} | {:.4f} | {:.2e} | {} | {} | "
        "{:.4f} "
        "| {:.4f} |\n",
        cell.gap,
        cell.replay,
        cell.mean_abs,
        cell.error,
        cell.p99,
        cell.max,
        cell.k3,
        cell.extreme,
        cell.early_mean_abs,
        compared ? fmt::format("{:+.2e} ({:+.1f} se)",
                               cell.difference,
                               cell.difference / std::max(1e-300, cell.difference_error))
                 : std::string("-"),
        compared ? fmt::format("{:+.2e} to {:+.2e}", cell.difference_low, cell.difference_high)
                 : std::string("-"),
        cell.route_agreement,
        cell.pick_jaccard);
  }
  if (report.gradients.empty()) {
    return text;
  }
  text +=
      "\n| rollout / trainer | replay | parameters | cosine | distance |\n|---|---|---|---|---|\n";
  for (const GradientCell& cell : report.gradients) {
    if (cell.parameters == "all" || cell.parameters.starts_with("attn.wkv") ||
        cell.parameters.starts_with("attn.compressor.wkv") ||
        cell.parameters.starts_with("ffn.experts.*.w1") ||
        cell.parameters.starts_with("ffn.gate.weight")) {
      text += fmt::format("| {} | {} | {} | {:.6f} | {:.3e} |\n",
                          cell.gap,
                          cell.replay,
                          cell.parameters,
                          cell.cosine,
                          cell.distance);
    }
  }
  return text;
}

}  // namespace baleen::rl
