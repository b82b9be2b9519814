#include "mesh/pipeline.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"

namespace baleen::mesh {
namespace {

constexpr std::size_t kMaxDims = 4;

/// What goes ahead of a message.
struct Header {
  int64_t backward = 0;
  int64_t micro_batch = 0;
  int64_t chunk = 0;
  int64_t element_bytes = 0;
  int64_t dims = 0;
  std::array<int64_t, kMaxDims> sizes{};
};

/// Forward and backward of one chunk and micro-batch, between the two.
struct Passage {
  at::Tensor input;    // a leaf; undefined before the first chunk
  ChunkResult result;  // streams, or the loss
};

class PipelineRun {
 public:
  PipelineRun(const StageSplit& stages, const PipelineWork& work, comm::Group& group)
      : stages_(stages), work_(work), group_(group), mail_(group) {}

  void forward(const PipelineAction& action) {
    Passage passage;
    if (!stages_.is_first(action.chunk)) {
      passage.input = take(action, action.chunk - 1).requires_grad_(work_.backward);
    }
    passage.result = work_.forward(action.chunk, action.micro_batch, passage.input);
    if (!stages_.is_last(action.chunk)) {
      hand_on(passage.result.output.detach(), action, action.chunk + 1);
    }
    if (work_.backward) {
      open_[{action.chunk, action.micro_batch}] = std::move(passage);
    }
  }

  void backward(const PipelineAction& action) {
    const auto found = open_.find({action.chunk, action.micro_batch});
    BALEEN_CHECK(found != open_.end(), "chunk {} backward before forward", action.chunk);
    const Passage passage = std::move(found->second);
    open_.erase(found);
    std::vector<at::Tensor> roots = {passage.result.output};
    std::vector<at::Tensor> gradients = {
        stages_.is_last(action.chunk) ? at::Tensor() : take(action, action.chunk + 1)};
    if (passage.result.beside.defined()) {
      roots.push_back(passage.result.beside);
      gradients.emplace_back();
    }
    for (std::size_t i = roots.size(); i-- > 0;) {
      if (!roots[i].requires_grad()) {  // nothing in it is trained
        roots.erase(roots.begin() + static_cast<std::ptrdiff_t>(i));
        gradients.erase(gradients.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (!roots.empty()) {
      torch::autograd::backward(roots, gradients);
    }
    if (!stages_.is_first(action.chunk)) {
      hand_on(passage.input.grad(), action, action.chunk - 1);
    }
  }

 private:
  using Key = std::pair<int, int>;  // chunk, micro-batch

  /// What chunk `from` made for this action.
  at::Tensor take(const PipelineAction& action, int from) {
    const int rank = stages_.rank_of_chunk(from);
    if (rank == group_.rank()) {
      auto& waiting = action.backward ? gradients_ : streams_;
      return waiting.extract({action.chunk, action.micro_batch}).mapped();
    }
    return mail_.receive(work_.streams_shape(action.micro_batch), work_.options, action, rank);
  }

  void hand_on(const at::Tensor& x, const PipelineAction& action, int to) {
    const int rank = stages_.rank_of_chunk(to);
    if (rank == group_.rank()) {
      auto& waiting = action.backward ? gradients_ : streams_;
      waiting[{to, action.micro_batch}] = x;
      return;
    }
    PipelineAction label = action;
    label.chunk = to;
    mail_.send(x, label, rank);
  }

  const StageSplit& stages_;
  const PipelineWork& work_;
  comm::Group& group_;
  StreamMail mail_;
  std::map<Key, Passage> open_;
  std::map<Key, at::Tensor> streams_;    // from chunks of this rank, by taker
  std::map<Key, at::Tensor> gradients_;  // likewise
};

}  // namespace

void StreamMail::send(const at::Tensor& x, const PipelineAction& label, int to) {
  const at::Tensor value = x.contiguous();
  BALEEN_CHECK(value.dim() <= static_cast<int64_t>(kMaxDims), "{} dims", value.dim());
  Header header{.backward = label.backward ? 1 : 0,
                .micro_batch = label.micro_batch,
                .chunk = label.chunk,
                .element_bytes = static_cast<int64_t>(value.element_size()),
                .dims = value.dim()};
  std::copy(value.sizes().begin(), value.sizes().end(), header.sizes.begin());
  group_.send(&header, sizeof(header), to);
  group_.send(value.const_data_ptr(), static_cast<int64_t>(value.nbytes()), to);
}

StreamMail::Message StreamMail::next(const at::TensorOptions& options, int from) {
  Header header;
  group_.receive(&header, sizeof(header), from);
  const std::vector<int64_t> sizes(header.sizes.begin(), header.sizes.begin() + header.dims);
  Message message{.from = from,
                  .label = {.backward = header.backward != 0,
                            .micro_batch = static_cast<int>(header.micro_batch),
                            .chunk = static_cast<int>(header.chunk)},
                  .value = at::empty(sizes, options)};
  if (header.element_bytes != static_cast<int64_t>(message.value.element_size())) {
    throw comm::CommError(
        fmt::format("pipeline: streams of {} bytes per number from rank {}, "
                    "expected {}",
                    header.element_bytes,
                    group_.members()[static_cast<std::size_t>(from)],
                    message.value.element_size()));
  }
  group_.receive(
      message.value.mutable_data_ptr(), static_cast<int64_t>(message.value.nbytes()), from);
  return message;
}

at::Tensor StreamMail::receive(const std::vector<int64_t>& shape,
                               const at::TensorOptions& options,
                               const PipelineAction& label,
                               int from) {
  const auto find = [&] {
    return std::find_if(kept_.begin(), kept_.end(), [&](const Message& message) {
      return message.from == from && message.label == label;
    });
  };
  auto found = find();
  while (found == kept_.end()) {
    kept_.push_back(next(options, from));
    found = find();
  }
  const at::Tensor value = found->value;
  kept_.erase(found);
  if (value.sizes() != at::IntArrayRef(shape)) {
    throw comm::CommError(
        fmt::format("pipeline: {} of chunk {}, micro-batch {}: expected shape [{}], got [{}]",
                    label.backward ? "gradient" : "streams",
                    label.chunk,
                    label.micro_batch,
                    fmt::join(shape, ", "),
                    fmt::join(value.sizes(), ", ")));
  }
  return value;
}

void run_pipeline(const StageSplit& stages,
                  PipelineOrder order,
                  const PipelineWork& work,
                  comm::Group& group) {
  BALEEN_CHECK(stages.num_ranks() == group.size(),
               "{} stages on {} ranks",
               stages.num_ranks(),
               group.size());
  PipelineRun run(stages, work, group);
  for (const PipelineAction& action :
       pipeline_schedule(stages, group.rank(), work.micro_batches, order)) {
    if (action.backward && work.backward) {
      run.backward(action);
    } else if (!action.backward) {
      run.forward(action);
    }
  }
}

}  // namespace baleen::mesh
