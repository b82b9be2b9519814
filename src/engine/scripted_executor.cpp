#include "engine/scripted_executor.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "engine/scripted_choices.h"
#include "text/tokenizer.h"

namespace baleen::engine {
namespace {

constexpr float kLogHalf = -0.693147181F;

}  // namespace

Script script_of_ids(std::span<const int32_t> ids, ScriptEnd end) {
  Script script;
  script.end = end;
  for (const int32_t id : ids) {
    script.steps.push_back({id});
  }
  return script;
}

Script script_of_text(const text::Tokenizer& tokenizer, std::string_view text, ScriptEnd end) {
  return script_of_ids(tokenizer.encode(text), end);
}

Script script_of_pieces(const text::Tokenizer& tokenizer,
                        std::span<const std::string> pieces,
                        ScriptEnd end) {
  Script script;
  script.end = end;
  for (const std::string& piece : pieces) {
    if (std::vector<int32_t> ids = tokenizer.encode(piece); !ids.empty()) {
      script.steps.push_back(std::move(ids));
    }
  }
  return script;
}

ScriptedExecutor::ScriptedExecutor(Options options) : options_(std::move(options)) {
  const ExecutorCapacity& c = options_.capacity;
  if (!options_.lookup || c.num_slots < 1 || c.max_context < 1 || c.max_step_tokens < 1 ||
      options_.end_token_id < 0 || options_.end_token_id >= c.vocab_size) {
    throw ConfigError("a scripted executor needs a lookup, capacity and an end token in range");
  }
  if (c.cache && c.choices) {
    throw ConfigError("a scripted executor records no choices of a shared cache");
  }
  if (c.cache) {
    pages_.emplace(*c.cache);
  }
  options_.capacity.max_accepted = Options::kMostAccepted;
  sequences_.resize(static_cast<size_t>(c.num_slots));
}

ExecutorInfo ScriptedExecutor::info() const {
  ExecutorInfo info;
  info.model_name = options_.model_name;
  info.numerics = "none";
  return info;
}

Ticket ScriptedExecutor::submit(const BatchPlan& plan, const MaskProvider& masks) {
  BALEEN_CHECK(!in_flight_, "step {} is unfinished", result_.step);
  BALEEN_CHECK(!released_.any(), "step {} without memory", plan.step);
  if (options_.step_delay.count() > 0) {
    std::this_thread::sleep_for(options_.step_delay);
  }
  if (pages_) {
    for (const cache::PageChange& change : plan.pages) {
      pages_->change(change);
    }
    for (const cache::ResumeCopy& copy : plan.copies) {
      pages_->resume(copy);
    }
  }
  for (const SlotReset& reset : plan.resets) {
    begin(reset);
  }
  result_ = StepResult();
  result_.step = plan.step;
  for (const BatchRow& row : plan.rows) {
    result_.rows.push_back(run_row(row, plan, masks));
  }
  accepted_.keep(result_);
  in_flight_ = true;
  ticket_ = Ticket(ticket_.value() + 1);
  return ticket_;
}

void ScriptedExecutor::begin(const SlotReset& reset) {
  Sequence& sequence = sequences_.at(static_cast<size_t>(reset.slot.value()));
  sequence = Sequence();
  sequence.told = static_cast<int32_t>(reset.generated.size());
  if (pages_) {
    sequence.prompt = pages_->prefix(reset.slot, reset.first_position);
  }
}

void ScriptedExecutor::write_pages(RequestSlot slot,
                                   size_t position,
                                   std::span<const int32_t> ids) {
  if (!pages_) {
    return;
  }
  for (const int32_t id : ids) {
    pages_->write(slot, static_cast<int32_t>(position++), id);
  }
}

StepResult ScriptedExecutor::wait(Ticket ticket) {
  BALEEN_CHECK(in_flight_ && ticket == ticket_, "ticket {} is not in flight", ticket.value());
  in_flight_ = false;
  return std::move(result_);
}

Status ScriptedExecutor::update_weights(const std::string& folder) {
  BALEEN_CHECK(!in_flight_, "weights change beside step {}", result_.step);
  Status status =
      options_.on_update ? options_.on_update(folder) : Executor::update_weights(folder);
  if (status.ok()) {
    released_.weights = false;
  }
  return status;
}

Status ScriptedExecutor::release_memory(MemoryParts parts) {
  BALEEN_CHECK(!in_flight_, "memory is released beside step {}", result_.step);
  BALEEN_CHECK(!(parts.cache && released_.cache) && !(parts.weights && released_.weights),
               "released twice");
  released_ = released_.with(parts);
  return {};
}

Status ScriptedExecutor::resume_memory(MemoryParts parts) {
  BALEEN_CHECK(!parts.without(released_).any(), "resumed what is there");
  released_ = released_.without(parts);
  return {};
}

RowResult ScriptedExecutor::run_row(const BatchRow& row,
                                    const BatchPlan& plan,
                                    const MaskProvider& masks) {
  Sequence& sequence = sequences_.at(static_cast<size_t>(row.slot.value()));
  RowResult result;
  if (row.kind == RowKind::kPrefill) {
    BALEEN_CHECK(static_cast<size_t>(row.first_position.value()) == sequence.prompt.size(),
                 "prompt part at {} after {} tokens",
                 row.first_position.value(),
                 sequence.prompt.size());
    const auto begin = plan.ids.begin() + row.ids_offset;
    write_pages(row.slot, sequence.prompt.size(), std::span(begin, begin + row.num_tokens));
    sequence.prompt.insert(sequence.prompt.end(), begin, begin + row.num_tokens);
    if (row.input_logprobs_from >= 0) {
      const int32_t end = row.first_position.value() + row.num_tokens;
      for (int32_t p = std::max({1, row.input_logprobs_from, row.first_position.value()}); p < end;
           ++p) {
        result.input_logprobs.push_back({sequence.prompt[static_cast<size_t>(p)], kLogHalf});
      }
    }
  }
  if (row.sampling_index < 0) {
    record(sequence, row, result);
    return result;
  }
  if (!sequence.loaded) {
    const std::span<const int32_t> prompt(sequence.prompt);
    sequence.script =
        options_.lookup(prompt.first(prompt.size() - static_cast<size_t>(sequence.told)));
    sequence.loaded = true;
    for (; sequence.emitted < sequence.told; ++sequence.emitted) {
      advance(sequence);
    }
  }
  const SamplingRow& sampling = plan.sampling.at(static_cast<size_t>(row.sampling_index));
  mask_.clear();
  if (sampling.bitmask_row >= 0) {
    mask_.resize(static_cast<size_t>((options_.capacity.vocab_size + 31) / 32));
    masks(sampling.bitmask_row, mask_);
  }
  int32_t limit = accepted_.limit(row, sampling);
  if (options_.capacity.max_drafts > 0) {
    limit = std::min(limit, row.num_drafts + 1);
  }
  result.num_drafted = row.num_drafts;
  emit(sequence, sampling, limit, result);
  record(sequence, row, result);
  // The row ran the token before its own, too, whose page may not have been there when it was
  // drawn.
  std::vector<int32_t>& generated = sequence.generated;
  const size_t first = generated.empty() ? 0 : generated.size() - 1;
  generated.insert(generated.end(), result.ids.begin(), result.ids.end());
  write_pages(row.slot, sequence.prompt.size() + first, std::span(generated).subspan(first));
  return result;
}

bool ScriptedExecutor::may_draw(const SamplingRow& sampling, int32_t id) const {
  const auto& forbidden = sampling.forbidden_ids;
  const auto bit = static_cast<size_t>(id);
  return (mask_.empty() || (mask_[bit / 32] >> (bit % 32) & 1U) != 0) &&
         std::find(forbidden.begin(), forbidden.end(), id) == forbidden.end();
}

int32_t ScriptedExecutor::draw(const Sequence& sequence, const SamplingRow& sampling) const {
  std::vector<int32_t> allowed;
  for (int32_t id = 0; id < options_.capacity.vocab_size; ++id) {
    if (may_draw(sampling, id)) {
      allowed.push_back(id);
    }
  }
  if (allowed.empty()) {
    return -1;
  }
  if (!sequence.script.random_seed) {
    return allowed.front();
  }
  std::seed_seq seed{static_cast<uint32_t>(*sequence.script.random_seed),
                     static_cast<uint32_t>(*sequence.script.random_seed >> 32U),
                     static_cast<uint32_t>(sequence.emitted)};
  std::mt19937_64 generator(seed);
  return allowed[generator() % allowed.size()];
}

/// Choices of the row's tokens: those it ran, the accepted ones but the last, a refused one.
void ScriptedExecutor::record(const Sequence& sequence,
                              const BatchRow& row,
                              RowResult& result) const {
  if (row.choices_from < 0) {
    return;
  }
  constexpr int32_t kRefused = 7;
  std::vector<int32_t> ids = sequence.prompt;
  ids.insert(ids.end(), sequence.generated.begin(), sequence.generated.end());
  // A row that follows one in flight may lie behind its planned place: by what has been emitted.
  const int32_t first = row.kind == RowKind::kPrefill ? row.first_position.value()
                                                      : static_cast<int32_t>(ids.size()) - 1;
  if (row.kind != RowKind::kPrefill && !result.ids.empty()) {
    ids.insert(ids.end(), result.ids.begin(), result.ids.end() - 1);
    ids.push_back(kRefused);
  }
  result.choices = scripted_choices(
      *options_.capacity.choices, std::span(ids).subspan(static_cast<size_t>(first)), first);
}

std::optional<int32_t> ScriptedExecutor::next_scripted(const Sequence& sequence) const {
  const auto& steps = sequence.script.steps;
  if (sequence.step < steps.size()) {
    return steps[sequence.step].at(sequence.offset);
  }
  if (sequence.script.end == ScriptEnd::kLength) {
    return std::nullopt;
  }
  return options_.end_token_id;
}

void ScriptedExecutor::advance(Sequence& sequence) const {
  const auto& steps = sequence.script.steps;
  if (sequence.step >= steps.size()) {
    return;  // the end token again and again
  }
  if (++sequence.offset == steps[sequence.step].size()) {
    sequence.offset = 0;
    ++sequence.step;
  }
  if (sequence.step == steps.size() && sequence.script.end == ScriptEnd::kRepeat) {
    sequence.step = 0;
  }
}

void ScriptedExecutor::emit(Sequence& sequence,
                            const SamplingRow& sampling,
                            int32_t accept_limit,
                            RowResult& result) {
  const Script& script = sequence.script;
  const auto push = [&](int32_t id) {
    ++sequence.emitted;
    result.ids.push_back(id);
    if (sampling.want_logprobs) {
      result.logprobs.push_back(kLogHalf);
      auto& top = result.top_logprobs.emplace_back();
      const auto vocab = options_.capacity.vocab_size;
      for (int32_t k = 0; k < sampling.top_logprobs && k < vocab; ++k) {
        const auto other = static_cast<int32_t>((id + k) % vocab);
        top.push_back({other, kLogHalf * static_cast<float>(k + 1)});
      }
    }
  };
  if (script.fail_after && sequence.emitted >= *script.fail_after) {
    throw Error(fmt::format("scripted failure after {} tokens", sequence.emitted));
  }
  if (script.nan_after && sequence.emitted >= *script.nan_after) {
    result.nan_logits = true;
    return;
  }
  if (sampling.forced_id >= 0) {
    push(sampling.forced_id);
    // Goes on behind its own next occurrence, as a model that was cut short would.
    size_t num_tokens = 0;
    for (const auto& step : script.steps) {
      num_tokens += step.size();
    }
    Sequence ahead = sequence;
    for (; num_tokens > 0 && ahead.step < script.steps.size(); --num_tokens) {
      const bool found = next_scripted(ahead) == sampling.forced_id;
      advance(ahead);
      if (found) {
        sequence.step = ahead.step;
        sequence.offset = ahead.offset;
        break;
      }
    }
    return;
  }
  const std::optional<int32_t> scripted = next_scripted(sequence);
  const bool is_masked = scripted && !mask_.empty() && !may_draw(sampling, *scripted);
  if (script.random_seed || is_masked) {
    const int32_t id = draw(sequence, sampling);
    if (id < 0) {
      result.nan_logits = true;
    } else {
      push(id);
    }
    return;
  }
  const size_t this_step = sequence.step;
  for (int32_t i = 0; i < accept_limit; ++i) {
    const std::optional<int32_t> next = next_scripted(sequence);
    if (!next) {
      result.out_of_room = true;
      return;
    }
    const auto& forbidden = sampling.forbidden_ids;
    if (std::find(forbidden.begin(), forbidden.end(), *next) != forbidden.end()) {
      push(script.filler_id);
      return;
    }
    push(*next);
    const bool continues = sequence.step < script.steps.size() &&
                           sequence.offset + 1 < script.steps[sequence.step].size();
    advance(sequence);
    if (!continues || sequence.step != this_step) {
      break;
    }
  }
  // The reason of the end comes with the last token, not with an empty step after it.
  if (!next_scripted(sequence)) {
    result.out_of_room = true;
  }
}

}  // namespace baleen::engine
