#include "runner/score.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "base/error.h"
#include "kernels/sampling/sampling.h"
#include "weights/safetensors_writer.h"

namespace baleen::runner {
namespace {

void check_sequences(const model::Model& model,
                     const std::vector<std::vector<int32_t>>& sequences) {
  const int64_t vocab_size = model.config().vocab_size;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::string name = "sequence " + std::to_string(i);
    const auto length = static_cast<int64_t>(sequences[i].size());
    if (length == 0) {
      throw ConfigError(name + " is empty");
    }
    if (length > model.max_context()) {
      throw ConfigError(name + " has " + std::to_string(length) + " tokens, the model takes " +
                        std::to_string(model.max_context()));
    }
    for (std::size_t t = 0; t < sequences[i].size(); ++t) {
      const int32_t id = sequences[i][t];
      if (id < 0 || id >= vocab_size) {
        throw ConfigError(name + ", position " + std::to_string(t) + ": token id " +
                          std::to_string(id) + " is outside the vocabulary of " +
                          std::to_string(vocab_size));
      }
    }
  }
}

std::vector<weights::TensorSpec> output_tensors(
    const model::Model& model, const std::vector<std::vector<int32_t>>& sequences) {
  const bool doubles = model.forward_config().compute == model::ComputeType::kFloat64;
  const weights::DType dtype = doubles ? weights::DType::kF64 : weights::DType::kF32;
  const int64_t vocab_size = model.config().vocab_size;
  std::vector<weights::TensorSpec> tensors;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::string index = std::to_string(i);
    const auto length = static_cast<int64_t>(sequences[i].size());
    tensors.push_back({"logits." + index, dtype, {length, vocab_size}});
    tensors.push_back({"logprobs." + index, dtype, {length - 1}});
    if (model.forward_config().with_mtp) {
      tensors.push_back({"mtp_logits." + index, dtype, {length - 1, vocab_size}});
    }
  }
  return tensors;
}

template <class Number>
void score_sequence(model::Model& model,
                    const std::vector<int32_t>& ids,
                    const std::vector<int64_t>& steps,
                    const std::string& index,
                    std::vector<Number> model::ForwardOutput::* logits,
                    std::vector<Number> model::ForwardOutput::* mtp_logits,
                    weights::SafetensorsWriter& writer) {
  const bool with_mtp = model.forward_config().with_mtp;
  const auto vocab_size = static_cast<std::size_t>(model.config().vocab_size);
  model::Sequence sequence = model.new_sequence();
  model::ForwardOutput output;
  std::vector<Number> logprobs;
  std::size_t begin = 0;
  for (const int64_t step : steps) {
    const auto count = static_cast<std::size_t>(step);
    const model::RowInput row{.sequence = &sequence,
                              .first_position = static_cast<int64_t>(begin),
                              .ids = std::span(ids).subspan(begin, count),
                              .logits = model::LogitsWanted::kAll,
                              .mtp_logits = with_mtp};
    model.forward({&row, 1}, output);
    const std::span<const Number> rows = output.*logits;
    writer.append("logits." + index, std::as_bytes(rows));
    for (std::size_t t = 0; t < count && begin + t + 1 < ids.size(); ++t) {
      logprobs.push_back(
          kernels::plain_logprob(rows.subspan(t * vocab_size, vocab_size), ids[begin + t + 1]));
    }
    if (with_mtp) {
      writer.append("mtp_logits." + index,
                    std::as_bytes(std::span<const Number>(output.*mtp_logits)));
    }
    begin += count;
  }
  writer.append("logprobs." + index, std::as_bytes(std::span<const Number>(logprobs)));
}

}  // namespace

std::vector<int64_t> score_steps(int64_t num_tokens, const ScoreOptions& options) {
  if (options.chunk < 0 || options.prefill < 0) {
    throw ConfigError("chunk and prefill must be positive");
  }
  if (options.chunk > 0 && options.prefill > 0) {
    throw ConfigError("chunk and prefill exclude each other");
  }
  std::vector<int64_t> steps;
  int64_t done = 0;
  while (done < num_tokens) {
    int64_t step = num_tokens;
    if (options.chunk > 0) {
      step = options.chunk;
    } else if (options.prefill > 0) {
      step = done == 0 ? options.prefill : 1;
    }
    steps.push_back(std::min(step, num_tokens - done));
    done += steps.back();
  }
  return steps;
}

void write_scores(model::Model& model,
                  const std::vector<std::vector<int32_t>>& sequences,
                  const ScoreOptions& options,
                  const std::filesystem::path& output) {
  check_sequences(model, sequences);
  score_steps(0, options);  // refuses contradicting options before a file is begun
  using Output = model::ForwardOutput;
  weights::SafetensorsWriter writer(output, output_tensors(model, sequences));
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::vector<int64_t> steps =
        score_steps(static_cast<int64_t>(sequences[i].size()), options);
    const std::string index = std::to_string(i);
    if (model.forward_config().compute == model::ComputeType::kFloat64) {
      score_sequence<double>(
          model, sequences[i], steps, index, &Output::logits_f64, &Output::mtp_logits_f64, writer);
    } else {
      score_sequence<float>(
          model, sequences[i], steps, index, &Output::logits, &Output::mtp_logits, writer);
    }
  }
  writer.finish();
}

}  // namespace baleen::runner
