#pragma once
// What draws the answers of a rollout: an engine of this process, or a server that is asked over
// HTTP (remote_engine.h). Called by the loop's thread; events come to the sink from another one.
//
//   LocalEngine engine(std::move(engine));
//   Status status = engine.submit(request, sink);   // events follow iff status.ok()
//   if (!engine.healthy()) { ... others take over what it had }

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/choice_records.h"
#include "engine/engine.h"

namespace baleen::rl {

class RolloutEngine {
 public:
  virtual ~RolloutEngine() = default;

  virtual Status submit(engine::GenerationRequest request,
                        std::shared_ptr<engine::OutputSink> sink) = 0;
  virtual void abort(std::string_view id) = 0;
  /// False: it takes and finishes nothing, until it got weights again.
  virtual bool healthy() const = 0;
  virtual std::string health_message() const = 0;
  /// How choices are recorded; none: they are not.
  virtual std::optional<cache::ChoiceLayout> choices() const = 0;
  virtual std::vector<int32_t> end_token_ids() const = 0;
};

/// An engine that somebody else owns.
class LocalEngine final : public RolloutEngine {
 public:
  explicit LocalEngine(engine::Engine& engine) : engine_(&engine) {}

  /// Another one in its place; no request is open.
  void replace(engine::Engine& engine) { engine_ = &engine; }

  Status submit(engine::GenerationRequest request,
                std::shared_ptr<engine::OutputSink> sink) override {
    return engine_->submit(std::move(request), std::move(sink));
  }
  void abort(std::string_view id) override { engine_->abort(id); }
  bool healthy() const override { return engine_->healthy(); }
  std::string health_message() const override { return engine_->health_message(); }
  std::optional<cache::ChoiceLayout> choices() const override {
    return engine_->stats().capacity.choices;
  }
  std::vector<int32_t> end_token_ids() const override { return engine_->config().end_token_ids; }

 private:
  engine::Engine* engine_;
};

}  // namespace baleen::rl
