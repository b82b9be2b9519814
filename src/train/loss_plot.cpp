#include "train/loss_plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace baleen::train {
namespace {

constexpr double kWidth = 720.0;
constexpr double kHeight = 360.0;
constexpr double kLeft = 60.0;
constexpr double kRight = 16.0;
constexpr double kTop = 32.0;
constexpr double kBottom = 40.0;
constexpr std::size_t kMostPoints = 2000;  // of the drawn line
constexpr std::size_t kMeanFrom = 40;      // values from which on a running mean is drawn
constexpr double kMeanShare = 0.03;        // of the values that it spans

/// A step between labels that people like: 1, 2 or 5 times a power of ten.
double label_step(double range) {
  const double raw = range / 5.0;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double factor = raw / power;
  return power * (factor <= 1.0 ? 1.0 : factor <= 2.0 ? 2.0 : factor <= 5.0 ? 5.0 : 10.0);
}

struct Frame {
  double first_step, last_step, low, high;

  double x(double step) const {
    return kLeft + (step - first_step) / (last_step - first_step) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kTop + (high - value) / (high - low) * (kHeight - kTop - kBottom);
  }
};

std::string polyline(const std::vector<PlotPoint>& points,
                     const Frame& frame,
                     const char* colour,
                     double width) {
  std::string places;
  const std::size_t stride = std::max<std::size_t>(1, points.size() / kMostPoints);
  for (std::size_t i = 0; i < points.size(); i += stride) {
    places += fmt::format(
        "{:.1f},{:.1f} ", frame.x(static_cast<double>(points[i].step)), frame.y(points[i].value));
  }
  return fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" points=\"{}\"/>\n",
                     colour,
                     width,
                     places);
}

std::vector<PlotPoint> running_mean(const std::vector<PlotPoint>& points) {
  const auto span = std::max<std::size_t>(
      2, static_cast<std::size_t>(kMeanShare * static_cast<double>(points.size())));
  std::vector<PlotPoint> means;
  double sum = 0.0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    sum += points[i].value - (i >= span ? points[i - span].value : 0.0);
    if (i + 1 >= span) {
      means.push_back({points[i].step, sum / static_cast<double>(span)});
    }
  }
  return means;
}

}  // namespace

std::string loss_plot_svg(const std::vector<PlotPoint>& all, const std::string& title) {
  std::vector<PlotPoint> points;
  for (const PlotPoint& point : all) {
    if (std::isfinite(point.value)) {
      points.push_back(point);
    }
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"{}\" y=\"20\" font-size=\"14\">{}</text>\n",
      kWidth,
      kHeight,
      kLeft,
      title);
  if (points.empty()) {
    return svg + "</svg>\n";
  }
  Frame frame{static_cast<double>(points.front().step),
              static_cast<double>(points.back().step),
              points.front().value,
              points.front().value};
  for (const PlotPoint& point : points) {
    frame.low = std::min(frame.low, point.value);
    frame.high = std::max(frame.high, point.value);
  }
  const double margin = std::max(0.05 * (frame.high - frame.low), 1e-6);
  frame.low -= margin;
  frame.high += margin;
  frame.last_step = std::max(frame.last_step, frame.first_step + 1.0);

  const double value_step = label_step(frame.high - frame.low);
  for (double v = std::ceil(frame.low / value_step) * value_step; v <= frame.high;
       v += value_step) {
    svg += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#dddddd\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
        kLeft,
        kWidth - kRight,
        frame.y(v),
        kLeft - 6.0,
        frame.y(v) + 4.0,
        std::abs(v) < 1e-12 ? 0.0 : v);
  }
  const double step_step = std::max(1.0, label_step(frame.last_step - frame.first_step));
  for (double s = std::ceil(frame.first_step / step_step) * step_step; s <= frame.last_step;
       s += step_step) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.0f}</text>\n",
                       frame.x(s),
                       kHeight - kBottom + 18.0,
                       s);
  }
  const bool with_mean = points.size() >= kMeanFrom;
  svg += polyline(points, frame, with_mean ? "#b6cde6" : "#1f5fa8", with_mean ? 1.0 : 1.5);
  if (with_mean) {
    svg += polyline(running_mean(points), frame, "#1f5fa8", 2.0);
  }
  return svg + fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n</svg>\n",
                           kWidth / 2.0,
                           kHeight - 8.0);
}

}  // namespace baleen::train
