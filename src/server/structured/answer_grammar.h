#pragma once
// From the wanted form of an answer and its tool choice to the one grammar that the engine holds
// the answer to. Compiles, with metrics; owned by the API server, any thread.
//
//   AnswerGrammars grammars(tokenizer, end_token_ids, vocab_size, registry);
//   Result<std::shared_ptr<const text::Grammar>> grammar =
//       grammars.make(format, choice, tools, profile);      // null where the answer is free

#include <cstdint>
#include <memory>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "engine/request.h"
#include "server/api_request.h"
#include "server/chat_messages.h"
#include "server/structured/answer_format.h"
#include "text/grammar.h"
#include "text/output_stream.h"

namespace baleen::text {
class Tokenizer;
}  // namespace baleen::text

namespace baleen::server {

class AnswerGrammars {
 public:
  AnswerGrammars(const text::Tokenizer& tokenizer,
                 std::vector<int32_t> end_token_ids,
                 int64_t vocab_size,
                 MetricRegistry& registry);

  /// kInvalidArgument naming the field whose grammar does not compile.
  Result<std::shared_ptr<const text::Grammar>> make(const AnswerFormat& format,
                                                    const ToolChoice& choice,
                                                    const std::vector<text::ToolSpec>& tools,
                                                    text::ChatProfile profile) const;

 private:
  Result<std::shared_ptr<const text::Grammar>> compile(const text::GrammarSpec& spec) const;

  const text::GrammarCompiler compiler_;
  Counter& num_grammars_;
  Counter& num_refused_;
  Histogram& compilation_time_;
};

/// The grammar of an answer without tools, where the context can make one.
Status add_grammar(const AnswerFormat& format,
                   const RequestContext& context,
                   engine::GenerationRequest& request);

}  // namespace baleen::server
