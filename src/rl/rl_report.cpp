#include "rl/rl_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace baleen::rl {
namespace {

constexpr int kPlotWidth = 60;
constexpr int kPlotHeight = 10;
constexpr std::size_t kEnds = 5;  // rollouts that the last line averages

double mean_of(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  double sum = 0.0;
  for (std::size_t i = begin; i < end; ++i) {
    sum += values[i];
  }
  return end > begin ? sum / static_cast<double>(end - begin) : 0.0;
}

std::string example_text(const RolloutGroup& group, const char* word) {
  const RolloutSample& sample = group.samples.front();
  return fmt::format("  {}  {}{}{}\n",
                     word,
                     group.prompt.text,
                     sample.response,
                     sample.filter_reward() >= 1.0 ? "" : "   expected " + group.prompt.label);
}

}  // namespace

std::string text_plot(const std::vector<double>& values, int width, int height) {
  if (values.empty()) {
    return {};
  }
  const std::size_t columns = std::min(values.size(), static_cast<std::size_t>(width));
  std::vector<double> shown;
  for (std::size_t c = 0; c < columns; ++c) {
    shown.push_back(
        mean_of(values, c * values.size() / columns, (c + 1) * values.size() / columns));
  }
  const auto [low_at, high_at] = std::minmax_element(shown.begin(), shown.end());
  const double low = std::floor(*low_at * 10.0) / 10.0;
  const double high = std::max(std::ceil(*high_at * 10.0) / 10.0, low + 0.1);
  std::string text;
  for (int row = height - 1; row >= 0; --row) {
    const double level = low + (high - low) * (row + 0.5) / height;
    text += fmt::format("{:5.2f} |", level);
    for (const double value : shown) {
      const auto place = static_cast<int>((value - low) / (high - low) * height);
      text += std::min(place, height - 1) == row ? '*' : ' ';
    }
    text += '\n';
  }
  return text + "      +" + std::string(columns, '-') + "\n";
}

std::string summary_text(const RlConfig& config, const RlSummary& summary, double seconds) {
  if (summary.stopped) {
    return fmt::format("{}: stopped and saved at rollout {} of {}; the same command goes on\n",
                       config.out,
                       summary.next_rollout,
                       config.num_rollout);
  }
  const std::vector<double>& rewards = summary.rewards;
  std::string text =
      "\nreward of the first answers, by rollout\n" + text_plot(rewards, kPlotWidth, kPlotHeight);
  for (const RolloutGroup& group : summary.solved) {
    text += example_text(group, "right");
  }
  for (const RolloutGroup& group : summary.failed) {
    text += example_text(group, "wrong");
  }
  const std::size_t first = std::min<std::size_t>(3, rewards.size());
  const std::size_t last = std::min(kEnds, rewards.size());
  text += fmt::format("reward {:.3f} (first {}) -> {:.3f} (last {})",
                      mean_of(rewards, 0, first),
                      first,
                      mean_of(rewards, rewards.size() - last, rewards.size()),
                      last);
  if (summary.greedy_start >= 0.0 && summary.greedy_end >= 0.0) {
    text += fmt::format(", greedy {:.3f} -> {:.3f}", summary.greedy_start, summary.greedy_end);
  }
  return text +
         fmt::format(
             ", {:.0f} s\n{}/metrics.jsonl, {}/reward.svg\n", seconds, config.out, config.out);
}

}  // namespace baleen::rl
