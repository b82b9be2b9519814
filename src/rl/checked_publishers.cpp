#include "rl/checked_publishers.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "base/error.h"
#include "engine/engine.h"
#include "rl/numeric_cell.h"

namespace baleen::rl {
namespace {

void send_update(engine::Engine& engine, engine::WeightUpdate order, int64_t version) {
  order.version = std::to_string(version);
  const Status status = engine.update_weights(order);
  if (!status.ok()) {
    throw Error("publishing weights " + *order.version + ": " + status.message);
  }
}

}  // namespace

train::WeightVerify verify_of_publish(int64_t number) {
  return number < 2 ? train::WeightVerify::kFull : train::WeightVerify::kSample;
}

void SourcePublisher::publish(engine::Engine& engine, int64_t version) {
  first_version_ = first_version_ < 0 ? version : first_version_;
  send_update(engine,
              {.source = source({.contract = contract_,
                                 .version = version,
                                 .verify = verify_of_publish(version - first_version_)})},
              version);
}

std::shared_ptr<weights::WeightSource> SharedPublisher::source(const train::SendOptions& options) {
  train::check_finite(masters_.values());  // rounded ones may hide it
  return std::make_shared<train::SharedWeights>(masters_.leaves(), options);
}

void CopyPublisher::take(const model::ModelParameters& leaves) {
  train::check_finite(leaves);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> fresh;
  model::ModelParameters rounded = numeric_side(leaves, formats_).params;
  model::for_each_parameter(
      rounded, [&](const model::ParameterInfo&, at::Tensor& value) { fresh.push_back(value); });
  std::size_t next = 0;
  model::for_each_parameter(served_, [&](const model::ParameterInfo&, at::Tensor& value) {
    const at::Tensor& source = fresh[next++];
    if (value.defined()) {
      value.copy_(source);
    }
  });
}

std::shared_ptr<weights::WeightSource> CopyPublisher::source(const train::SendOptions& options) {
  return std::make_shared<train::SharedWeights>(served_, options);
}

}  // namespace baleen::rl
