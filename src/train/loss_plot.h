#pragma once
// The curve of a run as a self-contained SVG picture. Pure.
//
//   write_text(folder / "loss.svg", loss_plot_svg(points, "train/loss"));

#include <cstdint>
#include <string>
#include <vector>

namespace baleen::train {

struct PlotPoint {
  int64_t step = 0;
  double value = 0.0;
};

/// Points in order of the step; those that are not finite are left out. Beside the values a running
/// mean is drawn where there are enough of them.
std::string loss_plot_svg(const std::vector<PlotPoint>& points, const std::string& title);

}  // namespace baleen::train
