#include "apps/bench/load/load_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace baleen::apps {
namespace {

constexpr double kPanelWidth = 300.0;
constexpr double kPanelHeight = 170.0;
constexpr double kLeft = 56.0;
constexpr double kTop = 54.0;
constexpr double kStepX = kPanelWidth + 76.0;
constexpr double kStepY = kPanelHeight + 74.0;
constexpr double kRowHeight = 17.0;
constexpr std::array<const char*, 8> kColours = {
    "#1d5fa6", "#c2571a", "#2b7a4b", "#7a3fa0", "#b3254f", "#4d6070", "#a07800", "#14808a"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

const char* colour_of(size_t row) {
  return kColours[row % kColours.size()];
}

/// 1, 2 or 5 times a power of ten, about `most` of them up to `end`.
double grid_step(double end, double most) {
  const double rough = end / most;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) {
      return factor * power;
    }
  }
  return 10.0 * power;
}

std::string row_name(const LoadRow& row) {
  return fmt::format("{}, {}", row.server, row.run.level.name());
}

std::string panel_frame(double x, double y, const std::string& title) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"title\">{}</text><rect x=\"{:.1f}\" y=\"{:.1f}\" "
      "width=\"{}\" height=\"{}\" class=\"frame\"/>",
      x,
      y - 10.0,
      escaped(title),
      x,
      y,
      kPanelWidth,
      kPanelHeight);
}

/// The values of each row, sorted, as stairs from 0 to 100 percent.
std::string shares_panel(double x,
                         double y,
                         const std::string& title,
                         const std::vector<std::vector<double>>& rows) {
  std::string out = panel_frame(x, y, title);
  double end = 0.0;
  for (const std::vector<double>& values : rows) {
    end = values.empty() ? end : std::max(end, percentile(values, 0.995));
  }
  if (end <= 0.0) {
    return out + fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">not measured</text>", x + 12, y + 24);
  }
  const double step = grid_step(end, 5.0);
  end = step * std::ceil(end / step);
  for (double tick = 0.0; tick <= end * 1.0001; tick += step) {
    const double at = x + kPanelWidth * tick / end;
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/><text "
        "x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4:g}</text>",
        at,
        y,
        y + kPanelHeight,
        y + kPanelHeight + 15,
        tick);
  }
  for (const int share : {0, 50, 90, 100}) {
    const double at = y + kPanelHeight * (1.0 - share / 100.0);
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/><text "
        "x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5} %</text>",
        x,
        x + kPanelWidth,
        at,
        x - 6,
        at + 4,
        share);
  }
  constexpr int kMostPoints = 200;
  for (size_t row = 0; row < rows.size(); ++row) {
    const std::vector<double>& values = rows[row];
    if (values.empty()) {
      continue;
    }
    std::string points;
    for (int i = 0; i <= kMostPoints; ++i) {
      const double share = static_cast<double>(i) / kMostPoints;
      const double at = std::min(percentile(values, share), end);
      points += fmt::format(
          "{:.1f},{:.1f} ", x + kPanelWidth * at / end, y + kPanelHeight * (1.0 - share));
    }
    out += fmt::format(
        "<polyline points=\"{}\" class=\"line\" stroke=\"{}\"/>", points, colour_of(row));
  }
  return out;
}

std::string speed_panel(double x, double y, const std::vector<LoadRow>& rows) {
  std::string out = panel_frame(x, y, "answer tokens per second");
  double most = 0.0;
  for (const LoadRow& row : rows) {
    most = std::max(most, row.figures.answer_tokens_per_s);
  }
  if (most <= 0.0) {
    return out;
  }
  const double slot = kPanelHeight / static_cast<double>(rows.size());
  const double height = std::min(slot * 0.7, 26.0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double speed = rows[i].figures.answer_tokens_per_s;
    const double width = (kPanelWidth - 70.0) * speed / most;
    const double at = y + slot * (static_cast<double>(i) + 0.5);
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/><text "
        "x=\"{:.1f}\" y=\"{:.1f}\">{:.1f}</text>",
        x,
        at - height / 2,
        width,
        height,
        colour_of(i),
        x + width + 6,
        at + 4,
        speed);
  }
  return out;
}

std::vector<double> sorted_ms(const LoadRow& row, double (*value)(const LoadRecord&)) {
  std::vector<double> values;
  for (const LoadRecord& record : row.run.records) {
    if (record.ok && record.first_s >= 0.0) {
      values.push_back(1e3 * value(record));
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

std::string load_plot(const std::vector<LoadRow>& rows) {
  std::vector<std::vector<double>> first;
  std::vector<std::vector<double>> gaps;
  std::vector<std::vector<double>> whole;
  for (const LoadRow& row : rows) {
    first.push_back(sorted_ms(row, [](const LoadRecord& r) { return r.first_s - r.begin_s; }));
    whole.push_back(sorted_ms(row, [](const LoadRecord& r) { return r.end_s - r.begin_s; }));
    std::vector<double>& all = gaps.emplace_back();
    for (const LoadRecord& record : row.run.records) {
      for (const double gap : record.gaps_s) {
        all.push_back(1e3 * gap);
      }
    }
    std::sort(all.begin(), all.end());
  }
  const double legend_y = kTop + 2 * kStepY - 26.0;
  const double width = kLeft + 2 * kStepX - 40.0;
  const double height = legend_y + kRowHeight * static_cast<double>(rows.size()) + 12.0;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\"><style>text{{font:11px sans-serif;fill:#33414d}}.title{{font-size:13px;"
      "font-weight:600}}.frame{{fill:none;stroke:#9aa7b1}}.grid{{stroke:#e2e7eb}}.line{{fill:none;"
      "stroke-width:2}}</style><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>",
      width,
      height);
  if (!rows.empty()) {
    out += fmt::format("<text x=\"{:.0f}\" y=\"22\">{}</text>",
                       kLeft,
                       escaped(fmt::format("{}; {}", rows.front().mix, rows.front().date)));
  }
  out += shares_panel(kLeft, kTop, "first token within … ms", first);
  out += shares_panel(kLeft + kStepX, kTop, "next piece within … ms", gaps);
  out += shares_panel(kLeft, kTop + kStepY, "whole answer within … ms", whole);
  out += speed_panel(kLeft + kStepX, kTop + kStepY, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double at = legend_y + kRowHeight * static_cast<double>(i);
    const LoadFigures& f = rows[i].figures;
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/><text "
        "x=\"{:.1f}\" "
        "y=\"{:.1f}\">{}</text>",
        kLeft,
        at,
        colour_of(i),
        kLeft + 20,
        at + 10,
        escaped(fmt::format(
            "{}: {} requests{}{}{}",
            row_name(rows[i]),
            f.requests,
            f.failed > 0 ? fmt::format(", {} failed", f.failed) : "",
            f.hit_rate ? fmt::format(", {:.0f} % of prompts cached", 100.0 * *f.hit_rate) : "",
            f.accept_length ? fmt::format(", {:.2f} tokens a verify step", *f.accept_length)
                            : "")));
  }
  return out + "</svg>\n";
}

}  // namespace baleen::apps
