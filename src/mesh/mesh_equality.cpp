// Prints, as CSV, how far every mesh shape is from one rank over five optimizer steps, in double
// and in float: the long form of mesh_axes_test.cpp, whose result is kept in bench/results.
//
//   mesh_equality [shape ...] > bench/results/cpu/DATE-mesh-equality.csv

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "mesh/mesh_model_for_tests.h"
#include "mesh/mesh_run_for_tests.h"

namespace baleen::mesh {
namespace {

struct Subject {
  std::string name;
  ModelConfig config;
  MeshBatch batch;
  std::vector<MeshCase> shapes;
  ops::Numerics numerics = ops::Numerics::plain();
};

/// Four layers of the published ratios and window over one row of 1024 tokens.
Subject long_row() {
  Subject subject{.name = "row1024", .config = nano_mesh_config(), .batch = {}, .shapes = {}};
  subject.config.sliding_window = 128;
  subject.config.layers[1] = {LayerKind::kC4, 4, false};
  subject.config.layers[2] = {LayerKind::kC128, 128, false};
  subject.config.layers[3] = {LayerKind::kC4, 4, false};
  subject.config.index_topk = 16;
  subject.batch = make_batch(1, {1024}, subject.config.vocab_size);
  for (const MeshCase& shape : all_mesh_shapes()) {
    if (shape.shape.cp > 1 && shape.shape.world_size() == shape.shape.cp && shape.shape.ep == 1) {
      subject.shapes.push_back(shape);
    }
  }
  subject.shapes.push_back(
      {.name = "cp2_tp2_sp", .shape = {.cp = 2, .tp = 2, .sequence_parallel = true}});
  return subject;
}

Subject short_rows() {
  Subject subject{.name = "rows8x32", .config = nano_mesh_config(), .batch = {}, .shapes = {}};
  subject.batch = make_batch(8, {32}, subject.config.vocab_size);
  subject.shapes = all_mesh_shapes();
  return subject;
}

/// Without tensor ranks and with sums in one order, where no bit of a token may change.
Subject in_one_order(Subject subject) {
  subject.name += "+invariant";
  subject.numerics = ops::Numerics::by_name("plain+invariant");
  std::erase_if(subject.shapes, [](const MeshCase& shape) { return shape.shape.tp > 1; });
  return subject;
}

/// Of all gradients together, relative to their norm.
double distance(const TensorsByName& from, const TensorsByName& to) {
  double difference = 0.0;
  double norm = 0.0;
  for (const auto& [name, tensor] : from) {
    const at::Tensor exact = tensor.to(at::kDouble);
    difference += (exact - to.at(name).to(at::kDouble)).square().sum().item<double>();
    norm += exact.square().sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

/// The model in another type, value for value.
model::ModelParameters in_type(model::ModelParameters params, at::ScalarType type) {
  model::for_each_parameter(params, [&](const model::ParameterInfo&, at::Tensor& value) {
    value = value.is_floating_point() ? value.to(type) : value;
  });
  return params;
}

double worst_of(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(a[i]));
  }
  return worst;
}

void compare(const Subject& subject, at::ScalarType dtype, const std::vector<std::string>& wanted) {
  // Both types train the same numbers, so that double says how far float is from the truth.
  const model::ModelParameters whole = in_type(nano_mesh_model(at::kFloat, subject.config), dtype);
  const MeshOutcome exact = run_on_mesh(
      {.name = "one"}, in_type(whole, at::kDouble), subject.batch, ops::Numerics::plain());
  const MeshOutcome single =
      run_on_mesh({.name = "one", .steps = 5}, whole, subject.batch, subject.numerics);
  for (MeshCase shape : subject.shapes) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), shape.name) == wanted.end()) {
      continue;
    }
    shape.steps = 5;
    const auto start = std::chrono::steady_clock::now();
    const MeshOutcome outcome = run_on_mesh(shape, whole, subject.batch, subject.numerics);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::string worst_gradient;
    std::string worst_value;
    const double gradients =
        largest_difference(single.gradients, outcome.gradients, &worst_gradient);
    const double values = largest_difference(single.values, outcome.values, &worst_value);
    std::printf("%s,%s,%d,%s,%.2e,%.2e,%.2e,%.2e,%s,%.2e,%s,%zu,%.1f,%.2e,%.2e,%.2e\n",
                subject.name.c_str(),
                shape.name.c_str(),
                shape.shape.world_size(),
                dtype == at::kDouble ? "double" : "float",
                worst_of(single.losses, outcome.losses),
                worst_of(single.gradient_norms, outcome.gradient_norms),
                (single.logprobs - outcome.logprobs).abs().max().item<double>(),
                gradients,
                worst_gradient.c_str(),
                values,
                worst_value.c_str(),
                outcome.disagreements.size(),
                seconds.count(),
                distance(single.gradients, outcome.gradients),
                distance(exact.gradients, single.gradients),
                distance(exact.gradients, outcome.gradients));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace baleen::mesh

int main(int argc, char** argv) {
  using namespace baleen::mesh;
  at::set_num_threads(1);
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  std::printf(
      "batch,shape,ranks,dtype,loss_rel,norm_rel,logprob_abs,gradient_rel,worst_gradient,"
      "weights_rel_5_steps,worst_weight,disagreements,seconds,gradient_l2,"
      "gradient_l2_single_to_double,gradient_l2_mesh_to_double\n");
  for (const Subject& subject :
       {short_rows(), in_one_order(short_rows()), long_row(), in_one_order(long_row())}) {
    compare(subject, at::kDouble, wanted);
    compare(subject, at::kFloat, wanted);
  }
  return 0;
}
