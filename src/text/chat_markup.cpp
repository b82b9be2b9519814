#include "text/chat_markup.h"

namespace baleen::text {
namespace {

MarkupTags make_tags(const std::string& block,
                     const std::string& invoke,
                     const std::string& parameter) {
  const std::string open = "<" + std::string(kDsml);
  const std::string close = "</" + std::string(kDsml);
  return {open + block,
          close + block,
          open + invoke,
          close + invoke,
          open + parameter,
          close + parameter};
}

}  // namespace

const MarkupTags& markup_tags(ChatProfile profile) {
  static const MarkupTags v4 = make_tags("tool_calls", "invoke", "parameter");
  static const MarkupTags v41 = make_tags(" calls", " invoke", " parameter");
  return profile == ChatProfile::kV41 ? v41 : v4;
}

}  // namespace baleen::text
