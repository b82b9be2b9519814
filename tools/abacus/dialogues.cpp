// Prints training conversations, one JSON object a line: pieces as [text, learned, topic], so that
// one can read what the model is trained on; or the held-out pairs as CSV.
//
//   abacus_dialogues --count 5 --max-tokens 384
//   abacus_dialogues --count 20000 --messages > chat.jsonl       # as `baleen train` reads them
//   abacus_dialogues --held-out > models/abacus/held_out.csv

#include <cstdint>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "abacus/dialogue.h"
#include "rl/held_out_pairs.h"

namespace {

using baleen::rl::held_out;
using baleen::rl::kMaxOperand;

using namespace baleen::abacus;

void print_held_out() {
  std::cout << "low,high\n";
  for (int low = 0; low <= kMaxOperand; ++low) {
    for (int high = low; high <= kMaxOperand; ++high) {
      if (held_out(low, high)) {
        std::cout << low << ',' << high << '\n';
      }
    }
  }
}

const char* topic_name(Topic topic) {
  switch (topic) {
    case Topic::kQuestion:
      return "question";
    case Topic::kFollowUp:
      return "follow_up";
    case Topic::kRecall:
      return "recall";
    case Topic::kSmallTalk:
      return "small_talk";
  }
  return "";
}

void print_dialogue(const Dialogue& dialogue) {
  boost::json::array pieces;
  for (const Piece& piece : dialogue.pieces) {
    pieces.push_back(boost::json::array{piece.text, piece.learned, topic_name(piece.topic)});
  }
  std::cout << boost::json::serialize(
                   boost::json::object{{"thinking", dialogue.thinking}, {"pieces", pieces}})
            << '\n';
}

/// {"messages": [...]}; of a conversation that a request of maximum effort would begin, nothing:
/// the supervised data have no such field.
void print_messages(const Dialogue& dialogue) {
  if (dialogue.effort_max) {
    return;
  }
  boost::json::array messages;
  for (const Message& message : dialogue.messages) {
    boost::json::object entry{{"role", message.role}, {"content", message.content}};
    if (!message.reasoning.empty()) {
      entry["reasoning_content"] = message.reasoning;
    }
    messages.push_back(std::move(entry));
  }
  std::cout << boost::json::serialize(boost::json::object{{"messages", std::move(messages)}})
            << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Prints training conversations of abacus"};
  bool only_held_out = false;
  bool as_messages = false;
  uint64_t count = 10;
  uint64_t first = 0;
  uint64_t seed = 1;
  DialogueShape shape;
  std::string phrases_path = "tools/abacus/phrases.json";
  app.add_flag("--held-out", only_held_out, "print the pairs that training never uses, as CSV");
  app.add_flag("--messages", as_messages, "print them as training data of `baleen train`");
  app.add_option("--count", count, "conversations");
  app.add_option("--first", first, "number of the first conversation");
  app.add_option("--seed", seed, "seed of the training run");
  app.add_option("--max-tokens", shape.max_tokens, "longest conversation, in characters");
  app.add_option("--thinking-share", shape.thinking_share, "share whose last turn reasons");
  app.add_option(
      "--below-zero-share", shape.below_zero_share, "share of the differences that are below zero");
  app.add_option(
      "--near-share", shape.near_share, "share of the questions whose numbers differ by at most 3");
  app.add_flag_callback(
      "--unseen", [&] { shape.pairs = Pairs::kHeldOut; }, "ask about held-out pairs");
  app.add_option("--phrases", phrases_path, "wordings");
  CLI11_PARSE(app, argc, argv);
  if (only_held_out) {
    print_held_out();
    return 0;
  }
  try {
    const Phrases phrases = read_phrases(phrases_path);
    for (uint64_t row = first; row < first + count; ++row) {
      Draws draws(seed, Draws::kDialogues, row);
      const auto characters = [](std::string_view text) {
        int64_t length = 0;
        for (const char c : text) {
          length += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
        }
        return length;
      };
      const Dialogue dialogue = make_dialogue(phrases, shape, characters, draws);
      if (as_messages) {
        print_messages(dialogue);
      } else {
        print_dialogue(dialogue);
      }
    }
  } catch (const std::exception& fault) {
    std::cerr << "abacus_dialogues: " << fault.what() << '\n';
    return 1;
  }
  return 0;
}
