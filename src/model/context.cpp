#include "model/context.h"

#include <utility>

#include <ATen/ops/cat.h>

#include "base/check.h"

namespace baleen::model {
namespace {

at::Tensor table_rows(const ops::RopeTable& table, const std::vector<SequenceGroup>& groups) {
  if (groups.size() == 1) {
    return table.rows(groups[0].first_position, groups[0].tokens);
  }
  std::vector<at::Tensor> parts;
  parts.reserve(groups.size());
  for (const SequenceGroup& group : groups) {
    const at::Tensor rows = table.rows(group.first_position, group.tokens);
    parts.push_back(group.batch == 1 ? rows : rows.repeat({group.batch, 1}));
  }
  return at::cat(parts, 0);
}

}  // namespace

RopeTables make_rope_tables(const ModelConfig& config,
                            int64_t num_positions,
                            const at::Tensor& like,
                            const ops::Numerics& numerics) {
  const int64_t dim = config.qk_rope_head_dim;
  const auto plain = ops::rope_frequencies(dim, config.rope_theta, std::nullopt);
  const auto compressed = ops::rope_frequencies(dim, config.compress_rope_theta, config.yarn);
  return {.plain = ops::make_rope_table(plain, num_positions, like, numerics),
          .compressed = ops::make_rope_table(compressed, num_positions, like, numerics)};
}

StepContext::StepContext(const ModelConfig& model_config,
                         const ops::Numerics& model_numerics,
                         const RopeTables& rope_tables,
                         at::Tensor token_ids,
                         std::vector<SequenceGroup> sequence_groups,
                         const ParallelStep* parallel_step)
    : config(model_config),
      numerics(model_numerics),
      tables(rope_tables),
      ids(std::move(token_ids)),
      groups(std::move(sequence_groups)),
      parallel(parallel_step) {
  for (SequenceGroup& group : groups) {
    BALEEN_CHECK(group.state == nullptr ? group.first_position == 0 || parallel != nullptr
                                        : group.batch == 1 && parallel == nullptr,
                 "batch={} first_position={}",
                 group.batch,
                 group.first_position);
    group.row_begin = num_rows_;
    num_rows_ += group.num_rows();
  }
  BALEEN_CHECK(ids.dim() == 1 && ids.size(0) == num_rows_, "{} ids", ids.numel());
  plain_rows_ = table_rows(tables.plain, groups);
  compressed_rows_ = table_rows(tables.compressed, groups);
}

at::Tensor StepContext::for_rotation(const at::Tensor& flat) const {
  if (groups.size() != 1) {
    return flat.unsqueeze(0);
  }
  return rows_of(flat, groups[0]);
}

at::Tensor StepContext::rows_of(const at::Tensor& flat, const SequenceGroup& group) const {
  const at::Tensor rows =
      groups.size() == 1 ? flat : flat.narrow(0, group.row_begin, group.num_rows());
  if (group.batch == 1) {
    return rows.unsqueeze(0);
  }
  std::vector<int64_t> shape = {group.batch, group.tokens};
  const auto rest = flat.sizes().slice(1);
  shape.insert(shape.end(), rest.begin(), rest.end());
  return rows.reshape(shape);
}

void StepContext::capture(const std::string& prefix,
                          const char* point,
                          std::size_t group,
                          const at::Tensor& value) const {
  if (trace != nullptr) {
    const std::string suffix = group == 0 ? "" : "#" + std::to_string(group);
    trace->capture(prefix + point + suffix, value);
  }
}

}  // namespace baleen::model
