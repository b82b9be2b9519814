#include "policy/value_loss.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "policy/token_losses.h"

namespace baleen::policy {
namespace {

void check_value_row(const ValueRow& row) {
  for (const Numbers& numbers : {row.values, row.old_values, row.returns}) {
    if (numbers.size() != row.mask.size()) {
      throw Error(
          fmt::format("sample {}: values, old values and returns must have {} entries, "
                      "they have {}, {} and {}",
                      row.sample,
                      row.mask.size(),
                      row.values.size(),
                      row.old_values.size(),
                      row.returns.size()));
    }
  }
  for (size_t t = 0; t < row.mask.size(); ++t) {
    if (row.mask[t] != 0 && !std::isfinite(row.values[t] + row.old_values[t] + row.returns[t])) {
      throw Error(fmt::format("sample {}, response token {}: value {}, old value {}, return {}",
                              row.sample,
                              t,
                              row.values[t],
                              row.old_values[t],
                              row.returns[t]));
    }
  }
}

}  // namespace

ValueLoss value_loss(std::span<const ValueRow> rows,
                     const ValueLossConfig& config,
                     const StepTotals& totals) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(rows[a].sample, rows[a].segment) < std::pair(rows[b].sample, rows[b].segment);
  });
  ValueLoss result;
  result.d_values.resize(rows.size());
  for (const size_t i : order) {
    const ValueRow& row = rows[i];
    check_value_row(row);
    result.d_values[i].assign(row.mask.size(), 0.0);
    const double scale = row_scale(totals, config.aggregation, row.rollout);
    const double share = metric_scale(totals, config.aggregation, row.rollout);
    for (size_t t = 0; t < row.mask.size(); ++t) {
      if (row.mask[t] == 0) {
        continue;
      }
      const ValueTerm term =
          clipped_value(row.values[t], row.old_values[t], row.returns[t], config.value_clip);
      result.loss += scale * term.loss;
      result.clipfrac += term.clipped ? share : 0.0;
      result.d_values[i][t] = scale * term.derivative;
    }
  }
  return result;
}

}  // namespace baleen::policy
