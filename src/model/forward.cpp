#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/InferenceMode.h>

#include "base/check.h"
#include "base/error.h"
#include "model/choices.h"
#include "model/contract.h"
#include "model/device_choice.h"
#include "model/device_storage.h"
#include "model/draft_step.h"
#include "model/forward_sequence.h"
#include "model/load_parameters.h"
#include "model/paged_formats.h"
#include "model/parameters.h"
#include "model/stages.h"
#include "model/whole_model.h"

namespace baleen::model {
namespace {

constexpr int64_t kFirstTableRows = 4096;  // positions; tables double when a sequence outgrows them

/// The name with "checkpoint" replaced by what the checkpoint asks for.
std::string resolved_numerics(const std::string& name, const ModelConfig& config) {
  constexpr std::string_view kCheckpoint = "checkpoint";
  if (!name.starts_with(kCheckpoint)) {
    return name;
  }
  return (config.quantization_config ? "reference" : "plain") + name.substr(kCheckpoint.size());
}

/// The thread count of operators is a property of the calling thread, so each thread sets it once.
void apply_thread_count(int32_t num_threads) {
  thread_local int32_t applied = 0;
  if (applied != num_threads) {
    at::set_num_threads(num_threads);
    applied = num_threads;
  }
}

template <class Number>
void copy_out(const at::Tensor& tensor, std::vector<Number>& target) {
  target.clear();
  if (tensor.defined()) {
    const at::Tensor host = tensor.to(at::kCPU).contiguous();
    const Number* data = host.data_ptr<Number>();
    target.assign(data, data + host.numel());
  }
}

}  // namespace

struct Model::Impl {
  ModelParameters params;
  std::shared_ptr<const weights::Checkpoint> checkpoint;  // null: parameters came from memory
  at::TensorOptions tensor_options;  // dtype and device of sequences and weights
  ForwardConfig config;
  ops::Numerics numerics;
  std::string numerics_name;
  int64_t max_context = 0;
  int64_t weight_bytes = 0;
  cache::ChoiceLayout choice_layout;
  RopeTables tables;
  // Of one step, kept for their capacity.
  std::vector<StepRow> rows;
  std::vector<int64_t> ids;

  SequenceStateOptions state_options() const {
    SequenceStateOptions options;
    options.max_rollback = config.max_rollback;
    options.with_mtp = config.with_mtp;
    return options;
  }

  void make_tables(int64_t num_positions) {
    const int64_t wanted =
        std::min(max_context, std::max({num_positions, kFirstTableRows, 2 * known_positions()}));
    tables = make_rope_tables(params.config, wanted, params.embed, numerics);
  }

  int64_t known_positions() const {
    return tables.plain.cis.defined() ? tables.num_positions() : 0;
  }

  /// Tables for positions below `end`.
  void reach(int64_t end) {
    BALEEN_CHECK(end <= max_context, "{} tokens, max_context {}", end, max_context);
    if (end > known_positions()) {
      make_tables(end);
    }
  }

  /// Main blocks one by one, each read before it runs and dropped behind.
  at::Tensor run_from_files(at::Tensor streams, const StepContext& step) {
    BALEEN_CHECK(checkpoint != nullptr, "neither main layers nor files");
    for (std::size_t block = 0; block < params.blocks.size(); ++block) {
      const std::string layer = main_layer(block);
      load_layer(*checkpoint, tensor_options, layer, params);
      streams = run_blocks(params, std::move(streams), block, block + 1, step);
      drop_layer(layer, params);
    }
    empty_cache();
    return streams;
  }

  /// Memory that no tensor has goes back to the device: pools and kernels want it.
  void empty_cache() const {
    const at::Device device = tensor_options.device();
    if (!device.is_cpu()) {
      at::getDeviceAllocator(device.type())->emptyCache();
    }
  }

  RunMainBlocks from_files() {
    return [this](at::Tensor streams, const StepContext& step) {
      return run_from_files(std::move(streams), step);
    };
  }

  void add_ids(std::span<const int32_t> new_ids) {
    BALEEN_CHECK(!new_ids.empty());
    for (const int32_t id : new_ids) {
      BALEEN_CHECK(id >= 0 && id < params.config.vocab_size, "token id {}", id);
      ids.push_back(id);
    }
  }

  at::Tensor id_tensor() const {
    at::Tensor tensor = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
    std::copy(ids.begin(), ids.end(), tensor.data_ptr<int64_t>());
    return tensor.to(params.embed.device());
  }
};

Model::Model(ModelParameters params, const ForwardConfig& forward_config)
    : impl_(std::make_unique<Impl>()) {
  const c10::InferenceMode inference;
  const ModelConfig& config = params.config;
  const bool with_mtp = forward_config.with_mtp;
  if (with_mtp && params.mtp.size() != 1) {
    throw ConfigError("the MTP block was asked for, but the checkpoint has " +
                      std::to_string(params.mtp.size()) + " of them (1 is supported)");
  }
  const int64_t allowed = config.max_position_embeddings;
  if (forward_config.max_context < 0 || forward_config.max_context > allowed) {
    throw ConfigError("max_context must be between 0 and max_position_embeddings (" +
                      std::to_string(allowed) + "), got " +
                      std::to_string(forward_config.max_context));
  }
  impl_->config = forward_config;
  impl_->numerics_name = resolved_numerics(forward_config.numerics, config);
  impl_->numerics = ops::Numerics::by_name(impl_->numerics_name);
  const at::Device device = device_by_name(forward_config.device);
  if (impl_->numerics.invariant() && !device.is_cpu()) {
    if (forward_config.keep_layers) {
      throw ConfigError("numerics \"" + impl_->numerics_name +
                        "\" is built for the CPU and for kernels");
    }
    const std::string& name = impl_->numerics_name;
    impl_->numerics = ops::Numerics::by_name(name.substr(0, name.find('+')));
  }
  impl_->max_context = forward_config.max_context > 0 ? forward_config.max_context : allowed;
  impl_->choice_layout = cache::choice_layout(config);
  impl_->params = std::move(params);
  convert_parameters(impl_->params, impl_->params.embed.scalar_type(), device);
  impl_->tensor_options = impl_->params.embed.options();
  impl_->weight_bytes = parameter_bytes(impl_->params);
  impl_->make_tables(1);
}

ModelForm model_form(const ModelConfig& config, const ForwardConfig& forward_config) {
  const std::string numerics = resolved_numerics(forward_config.numerics, config);
  const at::ScalarType compute =
      forward_config.compute == ComputeType::kFloat64 ? at::kDouble : at::kFloat;
  return {.numerics = numerics,
          .formats = model::cache_formats(ops::Numerics::by_name(numerics), compute)};
}

Model Model::load(const std::filesystem::path& folder, const ForwardConfig& forward_config) {
  const c10::InferenceMode inference;
  const at::ScalarType dtype =
      forward_config.compute == ComputeType::kFloat64 ? at::kDouble : at::kFloat;
  weights::OpenOptions open_options;
  open_options.load_mtp = forward_config.with_mtp;
  open_options.progress = forward_config.load_progress;
  const at::Device device = device_by_name(forward_config.device);
  const auto checkpoint =
      std::make_shared<const weights::Checkpoint>(weights::Checkpoint::open(folder, open_options));
  Model model(load_parameters(
                  *checkpoint, at::TensorOptions(dtype).device(device), forward_config.keep_layers),
              forward_config);
  model.impl_->checkpoint = checkpoint;
  return model;
}

std::shared_ptr<const weights::Checkpoint> Model::checkpoint() const {
  return impl_->checkpoint;
}

void Model::release_weights() {
  ModelParameters none;
  none.config = impl_->params.config;
  impl_->params = std::move(none);
  impl_->checkpoint.reset();
}

bool Model::has_weights() const {
  return impl_->params.embed.defined();
}

cache::TokenRoutes Model::token_routes() const {
  const c10::InferenceMode inference;
  cache::TokenRoutes out;
  out.vocab_size = impl_->params.config.vocab_size;
  out.experts_per_token = impl_->choice_layout.experts_per_token;
  for (size_t layer = 0; layer < impl_->params.blocks.size(); ++layer) {
    const BlockParameters& block = impl_->params.blocks[layer];
    if (!block.spec.hash_routed) {
      continue;
    }
    out.layers.push_back(static_cast<int32_t>(layer));
    const at::Tensor sorted =
        std::get<0>(at::sort(block.moe.tid2eid, -1)).to(at::kCPU, at::kInt).contiguous();
    const auto* ids = sorted.const_data_ptr<int32_t>();
    out.experts.insert(out.experts.end(), ids, ids + sorted.numel());
  }
  return out;
}

Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Sequence Model::new_sequence() const {
  const c10::InferenceMode inference;
  return Sequence(std::make_unique<Sequence::State>(Sequence::State{
      SequenceState(impl_->params.config, impl_->state_options(), impl_->tensor_options)}));
}

cache::CacheFormats Model::cache_formats() const {
  return model::cache_formats(impl_->numerics, impl_->tensor_options.dtype().toScalarType());
}

cache::PoolMemory Model::make_pools(const cache::CacheSizes& sizes, bool paint) const {
  return model::make_pools(impl_->params.config,
                           impl_->numerics,
                           impl_->tensor_options.dtype().toScalarType(),
                           sizes,
                           paint,
                           impl_->tensor_options.device());
}

Sequence Model::new_sequence(cache::PoolMemory& pools, const cache::SequencePages& pages) const {
  const c10::InferenceMode inference;
  return Sequence(std::make_unique<Sequence::State>(Sequence::State{SequenceState(
      impl_->params.config, impl_->state_options(), impl_->tensor_options, pools, pages)}));
}

void Model::forward(std::span<const RowInput> rows, ForwardOutput& output) {
  const c10::InferenceMode inference;
  apply_thread_count(impl_->config.num_threads);
  Impl& impl = *impl_;
  impl.rows.clear();
  impl.ids.clear();
  int64_t end = 0;
  for (const RowInput& row : rows) {
    SequenceState& state = row.sequence->state_->value;
    BALEEN_CHECK(!row.ids.empty() && row.first_position == state.num_tokens(),
                 "first_position={} num_tokens={} ids={}",
                 row.first_position,
                 state.num_tokens(),
                 row.ids.size());
    const auto num_tokens = static_cast<int64_t>(row.ids.size());
    impl.rows.push_back({.state = &state,
                         .num_tokens = num_tokens,
                         .logits = row.logits,
                         .mtp_logits = row.mtp_logits,
                         .mtp = row.mtp,
                         .next_id = row.next_id});
    impl.add_ids(row.ids);
    BALEEN_CHECK(row.next_id < impl.params.config.vocab_size, "token id {}", row.next_id);
    end = std::max(end, row.first_position + num_tokens);
  }
  impl.reach(end);

  output.vocab_size = impl.params.config.vocab_size;
  output.spans.clear();
  output.mtp_spans.clear();
  StepOutput step;
  if (!rows.empty()) {
    StepChoices choices;
    const bool records = impl.config.record_choices;
    step = forward_step(impl.params,
                        impl.tables,
                        impl.rows,
                        impl.id_tensor(),
                        impl.numerics,
                        /*trace=*/nullptr,
                        records ? &choices : nullptr,
                        impl.config.keep_layers ? RunMainBlocks() : impl.from_files());
    if (records) {
      encode_choices(choices, impl.choice_layout, output.choices);
    }
  }
  output.spans = std::move(step.spans);
  output.mtp_spans = std::move(step.mtp_spans);
  output.logits.clear();
  output.mtp_logits.clear();
  output.logits_f64.clear();
  output.mtp_logits_f64.clear();
  if (impl.params.embed.scalar_type() == at::kDouble) {
    copy_out(step.logits, output.logits_f64);
    copy_out(step.mtp_logits, output.mtp_logits_f64);
  } else {
    copy_out(step.logits, output.logits);
    copy_out(step.mtp_logits, output.mtp_logits);
  }
}

void Model::draft(std::span<const DraftInput> rows, ForwardOutput& output) {
  const c10::InferenceMode inference;
  Impl& impl = *impl_;
  apply_thread_count(impl.config.num_threads);
  output.vocab_size = impl.params.config.vocab_size;
  output.mtp_spans.clear();
  output.mtp_logits.clear();
  output.mtp_logits_f64.clear();
  if (rows.empty()) {
    return;
  }
  BALEEN_CHECK(impl.config.with_mtp, "the model was loaded without its MTP block");
  std::vector<DraftStepRow> steps;
  impl.ids.clear();
  int64_t end = 0;
  for (const DraftInput& row : rows) {
    SequenceState& state = row.sequence->state_->value;
    const auto num_rows = static_cast<int64_t>(row.next_ids.size());
    output.mtp_spans.push_back({static_cast<int64_t>(steps.size()), 1});
    steps.push_back({.state = &state, .num_rows = num_rows, .chained = row.chained});
    impl.add_ids(row.next_ids);
    end = std::max(end, state.mtp_layer(0).raw->end() + num_rows);
  }
  impl.reach(end);
  if (!impl.config.keep_layers) {
    BALEEN_CHECK(impl.checkpoint != nullptr, "neither the draft layer nor files");
    load_layer(*impl.checkpoint, impl.tensor_options, kDraftLayer, impl.params);
  }
  const at::Tensor logits =
      run_draft_step(impl.params, impl.tables, steps, impl.id_tensor(), impl.numerics);
  if (!impl.config.keep_layers) {
    drop_layer(kDraftLayer, impl.params);
    impl.empty_cache();
  }
  if (logits.scalar_type() == at::kDouble) {
    copy_out(logits, output.mtp_logits_f64);
  } else {
    copy_out(logits, output.mtp_logits);
  }
}

const ModelParameters& Model::parameters() const {
  return impl_->params;
}
ModelParameters& Model::parameters() {
  return impl_->params;
}
std::string Model::contract() const {
  return contract_digest(impl_->params, impl_->numerics);
}

const ModelConfig& Model::config() const {
  return impl_->params.config;
}
const cache::ChoiceLayout& Model::choice_layout() const {
  return impl_->choice_layout;
}
const ForwardConfig& Model::forward_config() const {
  return impl_->config;
}
const std::string& Model::numerics_name() const {
  return impl_->numerics_name;
}
int64_t Model::max_context() const {
  return impl_->max_context;
}
int64_t Model::weight_bytes() const {
  return impl_->weight_bytes;
}

double Model::state_bytes_per_token() const {
  return model::state_bytes_per_token(
      impl_->params.config, static_cast<int64_t>(impl_->tensor_options.dtype().itemsize()));
}

int64_t Model::fixed_state_bytes() const {
  return new_sequence().bytes();
}

}  // namespace baleen::model
